"""A model under a layout in DeepSpeed: runs a step's micro-batches forward and backward, and batches for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from elasmo.config import TrainConfig
from elasmo.model.batch import Batch, Encoded, pack
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.parallel.forward import ParallelModel
from elasmo.parallel.layout import Layout
from elasmo.parallel.mesh import make_mesh
from elasmo.parallel.parallelize import parallelize
from elasmo.train import deepspeed_adapter
from elasmo.train.loss import EMPTY


@dataclass(frozen=True)
class SlotOutput:
    """What a micro-batch gave, for the log: the packed batch, losses [1, seq] and correctness [1, seq] of its row."""

    batch: Batch
    losses: Tensor
    correct: Tensor


class TrainEngine:
    """Everything between samples and the optimizer on one rank.

    Attributes:
        shapes: of all tensors of the whole model.
        shards: what this rank holds of them.

    Args:
        model: whole, on its device, with the same weights on every rank; it is cut in place.
        layout: of all ranks of the default process group.
        slots: micro-batch slots of a global batch.
        timeout_s: of the groups' collectives.
    """

    def __init__(
        self, model: MultimodalDecoder, train: TrainConfig, layout: Layout, slots: int, timeout_s: float = 60.0
    ) -> None:
        self.layout = layout
        self.slots = slots
        self.micro_steps = -(-slots // layout.dp)
        self.mesh = make_mesh(layout, timeout_s)
        self.shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self.shards = parallelize(model, self.mesh, [range(model.config.decoder.layers)])
        self.model = ParallelModel(model, self.mesh, self.shards)
        self.device = next(model.parameters()).device
        self.deepspeed = deepspeed_adapter.build_engine(self.model, train, self.micro_steps, (self.mesh, self.shards))

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for its slots: their losses, rows and tokens are counted once."""
        return self.mesh.slot.rank == 0

    def step(
        self,
        feed: Iterable[Sequence[Encoded] | None],
        target_tokens: int,
        check: Callable[[int, Tensor], None] = lambda micro, losses: None,
    ) -> Iterator[SlotOutput | None]:
        """One optimizer step, advanced slot by slot as the results are taken.

        Args:
            feed: samples of each of the `micro_steps` slots of this rank, None where it has none: it then runs an
                empty micro-batch of weight zero, since every rank issues the same collectives.
            target_tokens: of the whole global batch, over which the loss is a mean.
            check: called with each slot's losses before they reach a gradient.
        """
        # DeepSpeed averages gradients over the ranks that hold the same parameters; sums are wanted.
        weight = self.layout.zero_ranks / target_tokens
        for micro, samples in enumerate(feed):
            batch = self.pack(samples)
            real = samples is not None
            self.model.set_aux_scale(self.layout.zero_ranks / self.slots if real else 0.0)
            losses, correct = self.deepspeed(batch)
            if real:
                check(micro, losses)
            self.deepspeed.backward(losses.sum() * (weight if real else 0.0), scale_wrt_gas=False)
            self.deepspeed.step()
            output = SlotOutput(batch, self._row(losses.detach()), self._row(correct))
            yield output if real else None

    def evaluate(self, samples: Sequence[Encoded] | None) -> SlotOutput | None:
        """A forward pass without gradients; every rank calls it as often as every other, None being an empty batch."""
        batch = self.pack(samples)
        with torch.no_grad():
            losses, correct = self.deepspeed(batch)
        output = SlotOutput(batch, self._row(losses), self._row(correct))
        return output if samples is not None else None

    def pack(self, samples: Sequence[Encoded] | None) -> Batch:
        """One row on this rank's device, as long as the layout's cuts need."""
        return pack(samples if samples is not None else [EMPTY], self.layout.row_multiple).to(self.device)

    def _row(self, own: Tensor) -> Tensor:
        """The whole row of what each sequence-parallel rank has a piece of."""
        group = self.mesh.sp
        if group.size == 1:
            return own
        parts = [torch.empty_like(own) for _ in group.ranks]
        dist.all_gather(parts, own.contiguous(), group=group.handle)
        return torch.cat(parts, dim=1)
