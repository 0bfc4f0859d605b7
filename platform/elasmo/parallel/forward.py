"""The forward pass of a slot under a layout: this rank's tokens through this rank's layers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from elasmo.model.batch import Batch
from elasmo.model.cross_attention import MediaContext
from elasmo.model.moe import MoE
from elasmo.model.multimodal import Media, MultimodalDecoder, at_targets, place_media
from elasmo.parallel import encoders
from elasmo.parallel.collectives import copy_to, gather, reduce_from, reduce_scatter
from elasmo.parallel.mesh import Mesh
from elasmo.parallel.sequence import UlyssesAttention
from elasmo.parallel.shards import Shard
from elasmo.parallel.tensor import cross_entropy


class ParallelModel(nn.Module):
    """A model that `parallelize` has cut, and how its parts play together.

    The row of a slot is cut into equal pieces over sequence-parallel ranks and, with `tp_sequence`, each piece once
    more over tensor-parallel ranks between the blocks. Batches are packed, a multiple of `layout.row_multiple` long.
    """

    def __init__(self, model: MultimodalDecoder, mesh: Mesh, shards: dict[str, Shard]) -> None:
        super().__init__()
        self.trained = model
        self.mesh = mesh
        self.shards = shards

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The whole model without a pipeline: losses float32 [1, own tokens] and correctness of this rank's tokens."""
        media = self.encode(batch)
        x = self.run(self.trained.decoder.layers, self.begin(batch, media), batch, media)
        return self.end(x, batch)

    def encode(self, batch: Batch) -> Media:
        """Embeddings of all media of the slot; a collective call of the slot's ranks."""
        # Tensor-parallel ranks repeat the residual stream, and its gradient, unless it is sharded over them.
        counted = self.mesh.layout.tp_sequence or self.mesh.tp.rank == 0
        return encoders.encode(self.trained, batch, self.mesh.slot, counted)

    def begin(self, batch: Batch, media: Media) -> Tensor:
        """The first stage's input [1, own tokens, hidden]: token and media embeddings."""
        layout, tp = self.mesh.layout, self.mesh.tp
        tokens = self.own(batch.tokens)
        x: Tensor = self.trained.embed_tokens(tokens)
        if layout.tp > 1:
            x = reduce_scatter(x, tp, dim=1) if layout.tp_sequence else reduce_from(x, tp)
        here = tokens.chunk(tp.size, dim=1)[tp.rank] if layout.tp_sequence else tokens
        start = self.mesh.sp.rank * tokens.shape[1] + (tp.rank * here.shape[1] if layout.tp_sequence else 0)
        own_media = {}
        for token, values in self.trained.in_sequence(media).items():
            before = int((batch.tokens[0, :start] == token).sum())
            own_media[token] = values[before : before + int((here == token).sum())]
        return place_media(x, here, own_media, self.trained.config.tokens)

    def run(self, layers: Iterable[nn.Module], x: Tensor, batch: Batch, media: Media) -> Tensor:
        """Some layers [1, own tokens, hidden] -> the same."""
        attention = batch.attention()
        if self.mesh.sp.size > 1:
            attention = UlyssesAttention(attention, self.mesh.sp)
        real = batch.real()
        own_real = None if real is None else self.own(real)
        context = self.context(batch, media)
        return self.trained.decoder.run(layers, x, self.own(batch.positions), attention, own_real, context)

    def context(self, batch: Batch, media: Media) -> MediaContext | None:
        """What this rank's tokens look at by cross-attention: latents whole, of the slot's tokens its own."""
        whole = self.trained.context(batch.tokens, batch.positions, media)
        if whole is None:
            return None
        tp = self.mesh.tp
        reached = self.own(whole.reached)
        if self.mesh.layout.tp_sequence:
            # Each tensor-parallel rank has its own tokens between blocks, and so a gradient of its own.
            return MediaContext(whole.latents, self._own_rows(whole.mask), reached.chunk(tp.size, dim=1)[tp.rank])
        return MediaContext(copy_to(whole.latents, tp), self._own_rows(whole.mask), reached)

    def _own_rows(self, mask: Tensor) -> Tensor:
        return mask.chunk(self.mesh.sp.size)[self.mesh.sp.rank]

    def end(self, x: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The last stage's output: losses float32 [1, own tokens] and correctness."""
        layout, tp = self.mesh.layout, self.mesh.tp
        hidden: Tensor = self.trained.decoder.norm(x)
        if layout.tp > 1:
            hidden = gather(hidden, tp, dim=1) if layout.tp_sequence else copy_to(hidden, tp)
        return at_targets(self.cross_entropy, hidden, self.own(batch.labels))

    def cross_entropy(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """`MultimodalDecoder.cross_entropy` where the vocabulary may be cut."""
        if self.mesh.layout.tp == 1:
            return self.trained.cross_entropy(hidden, labels)
        head = "embed_tokens.weight" if self.trained.lm_head is None else "lm_head.weight"
        return cross_entropy(self.trained.logits(hidden), labels, self.shards[head].box[0][0], self.mesh.tp)

    def own(self, row: Tensor) -> Tensor:
        """This rank's piece of a slot's row [1, seq, ...]."""
        return row.chunk(self.mesh.sp.size, dim=1)[self.mesh.sp.rank]

    def set_aux_scale(self, scale: float) -> None:
        """Sets the gradient of the experts' load-balancing losses for the next forward pass; 0 leaves them out."""
        for module in self.trained.modules():
            if isinstance(module, MoE):
                # Tensor-parallel ranks compute the same loss and their router gradients are summed.
                module.aux_scale = scale / self.mesh.layout.tp
