"""Model FLOPs of a training step, from the configuration and the sizes of the samples that were in it.

A multiplication and an addition count as two. Products with weights count forward once, and backward once for the
weights that are trained and once for the gradient that is passed on (Kaplan et al. 2020, section 2.1; Chowdhery et al.
2022, appendix B); attention counts the pairs that its mask leaves (Korthikanti et al. 2022 count a causal mask's other
half, too). Real tokens alone count: padding and what is recomputed are no use. Look-ups, norms and activations count
nothing. `HFU` adds what is recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from elasmo.config import ModelConfig

PARTS = ("vision", "audio", "table", "decoder", "head")
"""Parts of a model, an earlier one before a later one on the way to the loss."""
Recompute = Literal["none", "selective", "full"]
FORMULA = "forward + trained weights + passed gradients, 2 FLOPs a multiply-add, causal pairs, real tokens"
WHISPER_BORDER = 2
"""Frames that follow a clip of kind=whisper."""


@dataclass(frozen=True)
class Load:
    """What a sample asks of a model.

    Attributes:
        tokens: of the decoder's sequence.
        targets: tokens that have a logit.
        images: number of pictures.
        frames: mel frames of each recording.
        cells: of its tables.
    """

    tokens: int
    targets: int
    images: int = 0
    frames: tuple[int, ...] = ()
    cells: int = 0


@dataclass(frozen=True)
class Flops:
    """Forward FLOPs of a part: products with weights, and of attention's two products."""

    weights: float = 0.0
    attention: float = 0.0

    def __add__(self, other: Flops) -> Flops:
        return Flops(self.weights + other.weights, self.attention + other.attention)


@dataclass(frozen=True)
class Training:
    """Which of a model is trained.

    Attributes:
        trained: share of a part's weights that are; 1 for a part that is not named.
    """

    trained: Mapping[str, float] = field(default_factory=dict)

    def passes(self, part: str) -> bool:
        """Whether gradients go through a part: something in it, or before it on the way to the loss, is trained.

        Towers stand beside each other; all of them stand before the decoder.
        """
        before = (part,) if part in PARTS[:3] else PARTS[: PARTS.index(part) + 1]
        return any(self.trained.get(name, 1.0) > 0 for name in before)


def forward(config: ModelConfig, vocab: int, load: Load) -> dict[str, Flops]:
    """Forward FLOPs of a sample by part."""
    found = {part: Flops() for part in PARTS}
    if load.images:
        found["vision"] = _scaled(_image(config), load.images)
    for frames in load.frames:
        found["audio"] += _clip(config, frames)
    if load.cells and config.table is not None:
        table = config.table
        numbers = 2 * table.frequencies + 1
        width = numbers * table.hidden + table.hidden**2 + table.hidden * config.decoder.hidden
        found["table"] = Flops(2.0 * load.cells * width)
    found["decoder"] = _decoder(config, load)
    found["head"] = Flops(2.0 * load.targets * config.decoder.hidden * vocab)
    return found


def step(
    config: ModelConfig,
    vocab: int,
    loads: Iterable[Load],
    training: Training | None = None,
    recompute: Recompute = "none",
) -> tuple[float, float]:
    """(model FLOPs, hardware FLOPs) of forward and backward over samples; the second has what is recomputed, too.

    Args:
        training: what is trained; all when left out.
        recompute: of the decoder's layers; `selective` repeats attention's products alone.
    """
    training = training or Training()
    total = {part: Flops() for part in PARTS}
    for load in loads:
        for part, flops in forward(config, vocab, load).items():
            total[part] += flops
    useful = again = 0.0
    for part, flops in total.items():
        passes = training.passes(part)
        useful += flops.weights * (1 + training.trained.get(part, 1.0) + passes) + flops.attention * (1 + 2 * passes)
    if training.passes("decoder"):
        decoder = total["decoder"]
        again = {"none": 0.0, "selective": decoder.attention, "full": decoder.weights + decoder.attention}[recompute]
    return useful, useful + again


def _scaled(flops: Flops, times: float) -> Flops:
    return Flops(flops.weights * times, flops.attention * times)


def _decoder(config: ModelConfig, load: Load) -> Flops:
    decoder, cross = config.decoder, config.cross_attention if config.attends else None
    hidden, tokens = decoder.hidden, load.tokens
    width = decoder.heads * decoder.head_size
    attention = hidden * (2 * width + 2 * decoder.kv_heads * decoder.head_size)
    weights = pairs = 0.0
    for layer in range(decoder.layers):
        weights += tokens * attention
        if decoder.moe is not None and decoder.moe.has_experts(layer):
            moe = decoder.moe
            weights += tokens * hidden * (3 * moe.top_k * moe.ffn + moe.experts)
        else:
            weights += tokens * 3 * hidden * decoder.ffn
        pairs += tokens * (tokens + 1) / 2 * width
    media = load.images + len(load.frames)
    if cross is not None and media:
        latents = media * cross.latents
        for _ in filter(cross.has_block, range(decoder.layers)):
            weights += tokens * (2 * hidden**2 + 3 * hidden * (cross.ffn or decoder.ffn)) + 2 * latents * hidden**2
            pairs += tokens * cross.latents * hidden
    return Flops(2.0 * weights, 4.0 * pairs)


def _encoder(positions: int, hidden: int, ffn: int, layers: int) -> Flops:
    """Transformer blocks without a causal mask."""
    weights = layers * positions * (4 * hidden**2 + 2 * hidden * ffn)
    return Flops(2.0 * weights, 4.0 * layers * positions**2 * hidden)


def _resampler(config: ModelConfig, positions: int) -> Flops:
    cross, hidden = config.cross_attention, config.decoder.hidden
    if not config.attends:
        return Flops()
    ffn, both = cross.ffn or config.decoder.ffn, positions + cross.latents
    weights = cross.latents * (2 * hidden**2 + 2 * hidden * ffn) + both * 2 * hidden**2
    return Flops(2.0 * cross.resampler_layers * weights, 4.0 * cross.resampler_layers * cross.latents * both * hidden)


def _image(config: ModelConfig) -> Flops:
    vision, out = config.vision, config.decoder.hidden
    if vision is None:
        return Flops()
    patches = (vision.image_size // vision.patch) ** 2
    if vision.kind == "stem":
        channels, pixels = vision.stem, vision.image_size**2
        before = pixels * 9 * channels * (vision.channels + channels)
        before += patches * vision.patch**2 * channels * vision.hidden
        positions, layers = patches, vision.layers
    else:
        before = patches * vision.patch**2 * vision.channels * vision.hidden
        positions, layers = patches + (vision.kind == "clip"), vision.layers + 1 + vision.feature_layer
    projector = vision.hidden * out + (out**2 if vision.kind != "stem" and vision.projector == "mlp" else 0)
    blocks = _encoder(positions, vision.hidden, vision.ffn, layers)
    return blocks + Flops(2.0 * (before + vision.tokens * projector)) + _resampler(config, vision.tokens)


def _clip(config: ModelConfig, frames: int) -> Flops:
    audio, out = config.audio, config.decoder.hidden
    if audio is None:
        return Flops()
    hidden = audio.hidden
    if audio.kind == "whisper":
        positions = (frames - WHISPER_BORDER + 1) // 2
        before = 3 * hidden * (frames * audio.n_mels + positions * hidden)
        tokens = positions // 2 if audio.pool else positions
    else:
        half, positions = (frames + 1) // 2, (frames + 3) // 4
        before, tokens = 3 * hidden * (half * audio.n_mels + positions * hidden), positions
    blocks = _encoder(positions, hidden, audio.ffn, audio.layers)
    return blocks + Flops(2.0 * (before + tokens * hidden * out)) + _resampler(config, tokens)
