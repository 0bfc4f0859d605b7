"""The one model that is trained and served: media towers in front of a decoder, in its sequence or attended to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import AudioConfig, ModelConfig, TokensConfig, VisionConfig
from elasmo.model.attention import Attention
from elasmo.model.audio import AudioTower
from elasmo.model.batch import Batch
from elasmo.model.clip import ClipVisionTower
from elasmo.model.cross_attention import MediaContext, last_medium, media_context
from elasmo.model.decoder import Decoder
from elasmo.model.processor import TableField
from elasmo.model.resampler import PerceiverResampler
from elasmo.model.table import TableTower
from elasmo.model.vision import VisionTower
from elasmo.model.whisper import WhisperTower, sinusoids

Media = dict[int, Tensor]
"""Embeddings [positions, hidden] by the token that holds their places."""


class TokenEmbedding(nn.Embedding):
    """Token embeddings that can also score hidden states against every token, for tied output weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Token ids -> embeddings [..., hidden]; hidden states [..., hidden] -> logits [..., vocab].

        One module for both, so that sharding which gathers a module's weights when it is called covers both uses.
        """
        return F.linear(x, self.weight) if x.is_floating_point() else super().forward(x)


class MultimodalDecoder(nn.Module):
    """Vision, audio and table towers in front of one token decoder.

    Fused in sequence, as in LLaVA, every embedding stands at the place of a token. Fused by cross-attention, as in
    Flamingo, images and clips are resampled to latents that some decoder layers attend to, and one token stands where
    each was; a table's cells, which are few, stay in the sequence.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, table_fields: Sequence[TableField] = ()) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        hidden = config.decoder.hidden
        self.embed_tokens = TokenEmbedding(vocab_size, hidden)
        self.vision = make_vision_tower(config.vision, hidden) if config.vision is not None else None
        self.audio = make_audio_tower(config.audio, hidden) if config.audio is not None else None
        has_table = config.table is not None and len(table_fields) > 0
        self.table = TableTower(config.table, table_fields, hidden) if has_table and config.table else None
        self.vision_resampler = self._resampler() if self.vision is not None else None
        self.audio_resampler = self._resampler() if self.audio is not None else None
        self.decoder = Decoder(config.decoder, config.cross_attention if config.attends else None)
        self.lm_head = None if config.decoder.tie_embeddings else nn.Linear(hidden, vocab_size, bias=False)

    def init_weights(self, seed: int) -> None:
        """Draws every weight from `seed`: matrices with deviation 1/sqrt(fan-in), norms one, biases zero.

        Projections back into the decoder's residual stream are scaled down by its depth (GPT-2's rule).
        """
        generator = torch.Generator().manual_seed(seed)
        depth = 1.0 / math.sqrt(2 * self.config.decoder.layers)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 1:
                    parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
                    continue
                embedding = any(part in name for part in ("embed_tokens", "category", "field", "position", "gram"))
                by_row = embedding or ".experts." in name
                fan_in = parameter.shape[-1] if by_row else parameter[0].numel()
                into_residual = name.removesuffix(".weight").endswith(
                    ("o_proj", "down_proj", "projector", "projector.linear_2")
                )
                scale = depth if into_residual else 1.0
                values = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(values * scale / math.sqrt(fan_in))
                if name == "audio.embed_positions.weight":
                    parameter.copy_(sinusoids(*parameter.shape))

    def encode(self, batch: Batch, every_tower: bool = False) -> Media:
        """Embeddings [positions, hidden] of all media of a batch, keyed by the token that holds their places.

        With `every_tower` a tower without input runs once on a zero item, of which no row is kept: every rank then
        issues the same collectives and every parameter has a gradient, whatever the modalities of its micro-batch.
        """
        tokens = self.config.tokens
        towers = (
            (tokens.image, self.vision, self.vision_resampler, self._images(batch)),
            (tokens.audio, self.audio, self.audio_resampler, self._audio(batch)),
            (tokens.table, self.table, None, self._cells(batch)),
        )
        media: Media = {}
        for token, tower, resampler, (present, inputs) in towers:
            if tower is not None and (present or every_tower):
                values = tower(*inputs)
                if resampler is not None:
                    values = resampler(*self._by_medium(values, *inputs[1:]))
                values = values.flatten(0, -2)
                media[token] = values if present else values[:0]
        return media

    def context(self, tokens: Tensor, positions: Tensor, media: Media) -> MediaContext | None:
        """What cross-attention blocks look at, of int64 tokens and positions [batch, seq]; None when media stand in it.

        Raises:
            ValueError: the tokens have not as many placeholders of a medium as its tower made latents for.
        """
        each = self.config.cross_attention.latents
        attended = {token: values.unflatten(0, (-1, each)) for token, values in media.items() if self._attends(token)}
        if not attended:
            return None
        counts = {token: len(values) for token, values in attended.items()}
        for token, count in counts.items():
            check_places(int((tokens == token).sum()), count, token, self.config.tokens)
        return media_context(torch.cat(list(attended.values())), last_medium(tokens, positions, counts))

    def embed(self, tokens: Tensor, media: Media) -> Tensor:
        """Token embeddings [batch, seq, hidden] of int64 [batch, seq], with media embeddings in their places.

        Raises:
            ValueError: the tokens have not as many placeholders of a medium as its tower made embeddings.
        """
        return place_media(self.embed_tokens(tokens), tokens, self.in_sequence(media), self.config.tokens)

    def in_sequence(self, media: Media) -> Media:
        """The media whose embeddings stand in the decoder's sequence."""
        return {token: values for token, values in media.items() if not self._attends(token)}

    def decode(
        self, embeddings: Tensor, positions: Tensor, attention: Attention, context: MediaContext | None = None
    ) -> Tensor:
        """Hidden states [batch, seq, hidden] of embeddings at integer positions [batch, seq]."""
        out: Tensor = self.decoder(embeddings, positions, attention, context=context)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [..., vocab] of the next token from hidden states [..., hidden]."""
        out: Tensor = (self.embed_tokens if self.lm_head is None else self.lm_head)(hidden)
        return out

    def score(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy float32 [batch, seq], zero without a label, and whether the top logit is the label."""
        return at_targets(self.cross_entropy, hidden, labels)

    def cross_entropy(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Losses float32 [targets] of hidden states [targets, hidden], and whether the top logit is the label."""
        logits = self.logits(hidden).float()
        return F.cross_entropy(logits, labels, reduction="none"), logits.argmax(dim=-1) == labels

    def forward(self, batch: Batch) -> Tensor:
        """Logits [batch, seq, vocab]."""
        media = self.encode(batch)
        context = self.context(batch.tokens, batch.positions, media)
        return self.logits(self.decode(self.embed(batch.tokens, media), batch.positions, batch.attention(), context))

    def target_losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """`score` of a whole forward pass.

        Every tower runs, in evaluation too: under ZeRO 3 a rank that skipped one would leave the others waiting for
        its shard.
        """
        return self.score(self.hidden(batch), batch.labels)

    def hidden(self, batch: Batch) -> Tensor:
        """Hidden states [batch, seq, hidden] of a whole forward pass in which every tower runs."""
        media = self.encode(batch, every_tower=True)
        context = self.context(batch.tokens, batch.positions, media)
        embeddings = self.embed(batch.tokens, media)
        out: Tensor = self.decoder(embeddings, batch.positions, batch.attention(), batch.real(), context)
        return out

    def _attends(self, token: int) -> bool:
        return self.config.attends and token != self.config.tokens.table

    def _resampler(self) -> PerceiverResampler | None:
        config, decoder = self.config.cross_attention, self.config.decoder
        if not self.config.attends:
            return None
        ffn = config.ffn or decoder.ffn
        return PerceiverResampler(decoder.hidden, config.latents, config.resampler_layers, config.heads, ffn)

    def _by_medium(self, values: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Embeddings padded to [media, positions, hidden], and bool [media, positions], false at padding.

        Args:
            values: [images, positions, hidden], or [positions, hidden] of clips of `lengths` mel frames.
        """
        if lengths is None:
            return values, torch.ones(values.shape[:2], dtype=torch.bool, device=values.device)
        assert self.audio is not None  # lengths are those of clips
        counts = self.audio.tokens(lengths)
        real = torch.arange(int(counts.max()), device=values.device) < counts[:, None]
        padded = values.new_zeros(*real.shape, values.shape[-1])
        return padded.masked_scatter(real[:, :, None], values), real

    def _images(self, batch: Batch) -> tuple[bool, tuple[Tensor, ...]]:
        if len(batch.images) or self.vision is None:
            return len(batch.images) > 0, (batch.images,)
        size, channels = self.vision.config.image_size, self.vision.config.channels
        return False, (torch.zeros(1, size, size, channels, dtype=torch.uint8, device=batch.tokens.device),)

    def _audio(self, batch: Batch) -> tuple[bool, tuple[Tensor, ...]]:
        if len(batch.mel) or self.audio is None:
            return len(batch.mel) > 0, (batch.mel, batch.mel_lengths)
        device = batch.tokens.device
        return False, (torch.zeros(1, 8, self.audio.config.n_mels, device=device), torch.full((1,), 8, device=device))

    def _cells(self, batch: Batch) -> tuple[bool, tuple[Tensor, ...]]:
        cells = (batch.cell_fields, batch.cell_values, batch.cell_categories)
        details = (batch.cell_details, batch.cell_detail_of)
        if len(batch.cell_fields):
            return True, (*cells, *details)
        return False, (*(cell.new_zeros(1) for cell in cells), *details)


def make_vision_tower(config: VisionConfig, out: int) -> VisionTower | ClipVisionTower:
    """The tower of a kind."""
    return VisionTower(config, out) if config.kind == "stem" else ClipVisionTower(config, out)


def make_audio_tower(config: AudioConfig, out: int) -> AudioTower | WhisperTower:
    """The tower of a kind."""
    return AudioTower(config, out) if config.kind == "strided" else WhisperTower(config, out)


def place_media(x: Tensor, tokens: Tensor, media: Media, ids: TokensConfig) -> Tensor:
    """Puts media embeddings into x [batch, seq, hidden] where `tokens` [batch, seq] hold their places.

    Raises:
        ValueError: there are more or fewer places of a medium than embeddings.
    """
    for token, values in media.items():
        place = tokens == token
        check_places(int(place.sum()), len(values), token, ids)
        x = x.masked_scatter(place[:, :, None], values.to(x.dtype))
    return x


def check_places(places: int, values: int, token: int, ids: TokensConfig) -> None:
    """Raises ValueError when a batch has more or fewer placeholders of a medium than there are values for them."""
    if places != values:
        medium = {ids.image: "<|image|>", ids.audio: "<|audio|>", ids.table: "<|table|>"}[token]
        raise ValueError(
            f"The batch has {places} placeholders {medium} for {values} embeddings; it was "
            "encoded for a model with other image, audio or table settings."
        )


def at_targets(
    cross_entropy: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], hidden: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses float32 [batch, seq] and correctness bool [batch, seq], zero and false without a label.

    Logits are computed at targets only: most positions are prompts and media.
    """
    targets = labels >= 0
    losses, right = cross_entropy(hidden[targets], labels[targets])
    zeros = torch.zeros(targets.shape, dtype=losses.dtype, device=losses.device)
    # Scattering connects even a batch without targets to every parameter, with gradients of zero.
    return zeros.masked_scatter(targets, losses), torch.zeros_like(targets).masked_scatter(targets, right)
