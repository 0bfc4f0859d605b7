"""Model FLOPs of a training step, from the configuration, the trained parameters and the sizes of the samples in it.

A multiplication and an addition count as two (Kaplan et al. 2020, section 2.1). A product with a weight counts once
forward, once backward if the weight is trained, and once if a gradient passes on to what lies before it; where all is
trained that is the 6 of Chowdhery et al. 2022, appendix B. Attention counts the pairs that its mask leaves: half of
what Narayanan et al. 2021, equation 3, and Chowdhery count for a causal one. Real tokens alone count. Padding, and what
is recomputed, is no use: `hardware` adds the latter. Look-ups, norms and activations count nothing.

The model is walked from the media to the loss, matrix by matrix, so a frozen tower under a trained projector, or frozen
layers before the first trained one, count forward only. Adapters count as the thin products that they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Literal

from elasmo.config import LoraConfig, ModelConfig
from elasmo.measure.flops_walk import Flops, Rows, Trained, Walk

PARTS = ("vision", "audio", "table", "decoder", "head")
"""Parts of a model; projectors and resamplers count to their tower, adapters to the decoder."""
Recompute = Literal["none", "selective", "full"]
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


class ModelFlops:
    """FLOPs of a model that is trained in a certain way, for any samples.

    Args:
        vocab: tokens that the head scores.
        trained: names of the trained parameters; all when None.
        lora: adapters beside the decoder's matrices.
        recompute: of the decoder's layers. `selective` keeps every product, so it recomputes no FLOPs.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocab: int,
        trained: Set[str] | None = None,
        lora: LoraConfig | None = None,
        recompute: Recompute = "none",
    ) -> None:
        self._config = config
        walk = Walk(Trained(trained), lora)
        _towers(walk, config)
        _decoder(walk, config, recompute == "full")
        walk.part = "head"
        head = "embed_tokens" if config.decoder.tie_embeddings else "lm_head"
        walk.products("targets", {head: (config.decoder.hidden, vocab)})
        self._rates = walk.rates

    def by_part(self, load: Load) -> dict[str, Flops]:
        """Of one sample."""
        found = {part: Flops() for part in PARTS}
        counts = _counts(self._config, load)
        for (part, unit), flops in self._rates.items():
            found[part] += flops * counts[unit]
        return found

    def step(self, loads: Iterable[Load]) -> tuple[float, float]:
        """(model FLOPs, hardware FLOPs) of forward and backward over samples."""
        total = Flops()
        for load in loads:
            for flops in self.by_part(load).values():
                total += flops
        return total.model, total.hardware


def _counts(config: ModelConfig, load: Load) -> dict[str, float]:
    """How much of each unit a sample has; the units are those of `Walk.rates`."""
    clips = [_clip(config, frames) for frames in load.frames]
    media = load.images + len(load.frames)
    return {
        "tokens": load.tokens,
        "pairs": load.tokens * (load.tokens + 1) / 2,
        "targets": load.targets,
        "images": load.images,
        "cells": load.cells,
        "clips": len(clips),
        "inputs": sum(clip[0] for clip in clips),
        "positions": sum(clip[1] for clip in clips),
        "position pairs": sum(clip[1] ** 2 for clip in clips),
        "outputs": sum(clip[2] for clip in clips),
        "looking tokens": load.tokens if media else 0,
        "media": media,
    }


def _clip(config: ModelConfig, frames: int) -> tuple[int, int, int]:
    """Outputs of the first convolution, positions of the encoder, and outputs of the tower for a recording."""
    if config.audio is None or config.audio.kind == "strided":
        positions = (frames + 3) // 4
        return (frames + 1) // 2, positions, positions
    positions = (frames - WHISPER_BORDER + 1) // 2
    return frames, positions, positions // 2 if config.audio.pool else positions


def _towers(walk: Walk, config: ModelConfig) -> None:
    """All towers: each begins anew, and the decoder has to pass gradients to any that is trained."""
    ends = {"sequence": False, "media": False}
    for part, tower in (("vision", _vision), ("audio", _audio), ("table", _table)):
        if getattr(config, part) is not None:
            walk.part, walk.passes = part, {"sequence": False, "media": False}
            tower(walk, config)
            ends["media" if config.attends and part != "table" else "sequence"] |= walk.passes["media"]
    walk.passes = ends


def _vision(walk: Walk, config: ModelConfig) -> None:
    vision, out = config.vision, config.decoder.hidden
    assert vision is not None
    patches = (vision.image_size // vision.patch) ** 2
    if vision.kind == "stem":
        pixels = vision.image_size**2
        walk.products("images", {"vision.conv1": (9 * vision.channels, vision.stem)}, pixels)
        walk.products("images", {"vision.conv2": (9 * vision.stem, vision.stem)}, pixels)
        walk.products("images", {"vision.patch": (vision.patch**2 * vision.stem, vision.hidden)}, patches)
        walk.touch("vision.position")
        rows = Rows("images", patches, "images", patches**2)
        for layer in range(vision.layers):
            _block(walk, f"vision.blocks.{layer}", (vision.hidden, vision.ffn), rows)
        walk.touch("vision.norm")
    else:
        positions = patches + (vision.kind == "clip")
        walk.products("images", {"vision.patch_embedding": (vision.patch**2 * vision.channels, vision.hidden)}, patches)
        walk.touch("vision.class_embedding", "vision.position_embedding", "vision.pre_layernorm")
        rows = Rows("images", positions, "images", positions**2)
        for layer in range(vision.layers + 1 + vision.feature_layer):
            name, norms = f"vision.layers.{layer}", ("layer_norm1", "layer_norm2")
            _separate_block(walk, name, norms, f"{name}.mlp", (vision.hidden, vision.ffn), rows)
    if vision.kind != "stem" and vision.projector == "mlp":
        walk.products("images", {"vision.projector.linear_1": (vision.hidden, out)}, vision.tokens)
        walk.products("images", {"vision.projector.linear_2": (out, out)}, vision.tokens)
    else:
        walk.products("images", {"vision.projector": (vision.hidden, out)}, vision.tokens)
    _resampler(walk, config, "vision_resampler", {"images": vision.tokens}, "images")


def _audio(walk: Walk, config: ModelConfig) -> None:
    audio = config.audio
    assert audio is not None
    hidden, rows = audio.hidden, Rows("positions", 1, "position pairs", 1)
    walk.products("inputs", {"audio.conv1": (3 * audio.n_mels, hidden)})
    walk.products("positions", {"audio.conv2": (3 * hidden, hidden)})
    walk.touch("audio.embed_positions")
    for layer in range(audio.layers):
        if audio.kind == "strided":
            _block(walk, f"audio.blocks.{layer}", (hidden, audio.ffn), rows)
        else:
            name, norms = f"audio.layers.{layer}", ("self_attn_layer_norm", "final_layer_norm")
            _separate_block(walk, name, norms, name, (hidden, audio.ffn), rows)
    walk.touch("audio.norm", "audio.layer_norm")
    walk.products("outputs", {"audio.projector": (hidden, config.decoder.hidden)})
    _resampler(walk, config, "audio_resampler", {"outputs": 1}, "clips")


def _table(walk: Walk, config: ModelConfig) -> None:
    """Numbers of every cell are projected; the few features of times are not counted."""
    table = config.table
    assert table is not None
    walk.products("cells", {"table.number": (2 * table.frequencies + 1, table.hidden)})
    walk.touch("table.category", "table.field", "table.gram", "table.time")
    walk.products("cells", {"table.mix": (table.hidden, table.hidden)})
    walk.products("cells", {"table.projector": (table.hidden, config.decoder.hidden)})


def _decoder(walk: Walk, config: ModelConfig, recompute: bool) -> None:
    decoder, hidden = config.decoder, config.decoder.hidden
    queries, keys = decoder.heads * decoder.head_size, decoder.kv_heads * decoder.head_size
    walk.part, walk.stream = "decoder", "sequence"
    walk.touch("embed_tokens")
    for layer in range(decoder.layers):
        name, before = f"decoder.layers.{layer}", walk.forward()
        if config.attends and config.cross_attention.has_block(layer):
            _media_block(walk, config, f"{name}.cross_attention")
        attention = f"{name}.self_attn"
        walk.touch(f"{name}.input_layernorm")
        shapes = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        walk.products("tokens", {f"{attention}.{key}": (hidden, width) for key, width in shapes.items()})
        walk.touch(f"{attention}.q_norm", f"{attention}.k_norm")
        walk.attention("pairs", queries)
        walk.products("tokens", {f"{attention}.o_proj": (queries, hidden)})
        walk.touch(f"{name}.post_attention_layernorm")
        moe = decoder.moe
        if moe is not None and moe.has_experts(layer):
            both = {f"{name}.mlp.experts.{key}": (hidden, moe.top_k * moe.ffn) for key in ("gate_proj", "up_proj")}
            walk.products("tokens", {f"{name}.mlp.gate": (hidden, moe.experts), **both})
            walk.products("tokens", {f"{name}.mlp.experts.down_proj": (moe.top_k * moe.ffn, hidden)})
            kept = 0.0
        else:
            _gated(walk, f"{name}.mlp", hidden, decoder.ffn, "tokens")
            kept = walk.last  # nothing in the backward pass needs the last product's result
        if recompute and walk.passes["sequence"]:
            for unit, flops in walk.forward().items():
                walk.again(unit, flops - before.get(unit, 0.0) - (kept if unit == "tokens" else 0.0))
    walk.touch("decoder.norm")


def _media_block(walk: Walk, config: ModelConfig, name: str) -> None:
    """Counted for samples with media: without one, a block passes its tokens on as they are."""
    hidden, latents = config.decoder.hidden, config.cross_attention.latents
    walk.touch(f"{name}.attention_norm")
    walk.products("looking tokens", {f"{name}.attention.q_proj": (hidden, hidden)})
    walk.stream = "media"
    own = walk.passes["media"]
    sides = {f"{name}.attention.{key}": (hidden, hidden) for key in ("k_proj", "v_proj")}
    walk.products("media", sides, latents)
    walk.passes["sequence"] |= walk.passes["media"]
    walk.stream, walk.passes["media"] = "sequence", own
    walk.attention("looking tokens", latents * hidden)
    walk.products("looking tokens", {f"{name}.attention.o_proj": (hidden, hidden)})
    walk.touch(f"{name}.attention_gate", f"{name}.mlp_norm")
    _gated(walk, f"{name}.mlp", hidden, config.cross_attention.ffn or config.decoder.ffn, "looking tokens")
    walk.touch(f"{name}.mlp_gate")


def _gated(walk: Walk, name: str, hidden: int, ffn: int, unit: str) -> None:
    walk.products(unit, {f"{name}.gate_proj": (hidden, ffn), f"{name}.up_proj": (hidden, ffn)})
    walk.products(unit, {f"{name}.down_proj": (ffn, hidden)})


def _block(walk: Walk, name: str, widths: tuple[int, int], rows: Rows) -> None:
    """`elasmo.model.encoder.EncoderBlock`."""
    hidden, _ = widths
    walk.touch(f"{name}.norm1")
    walk.products(rows.unit, {f"{name}.qkv": (hidden, 3 * hidden)}, rows.count)
    walk.attention(rows.pair_unit, rows.pairs * hidden)
    walk.products(rows.unit, {f"{name}.out": (hidden, hidden)}, rows.count)
    walk.touch(f"{name}.norm2")
    _two_layers(walk, name, widths, rows)


def _separate_block(
    walk: Walk, name: str, norms: tuple[str, str], mlp: str, widths: tuple[int, int], rows: Rows
) -> None:
    """A layer of CLIP or Whisper, whose queries, keys and values have matrices of their own."""
    hidden, _ = widths
    walk.touch(f"{name}.{norms[0]}")
    sides = {f"{name}.self_attn.{key}": (hidden, hidden) for key in ("q_proj", "k_proj", "v_proj")}
    walk.products(rows.unit, sides, rows.count)
    walk.attention(rows.pair_unit, rows.pairs * hidden)
    walk.products(rows.unit, {f"{name}.self_attn.out_proj": (hidden, hidden)}, rows.count)
    walk.touch(f"{name}.{norms[1]}")
    _two_layers(walk, mlp, widths, rows)


def _two_layers(walk: Walk, name: str, widths: tuple[int, int], rows: Rows) -> None:
    hidden, ffn = widths
    walk.products(rows.unit, {f"{name}.fc1": (hidden, ffn)}, rows.count)
    walk.products(rows.unit, {f"{name}.fc2": (ffn, hidden)}, rows.count)


def _resampler(walk: Walk, config: ModelConfig, name: str, positions: Mapping[str, int], medium: str) -> None:
    """Latents look at a medium of some positions a unit, and at themselves."""
    if not config.attends:
        return
    cross, hidden = config.cross_attention, config.decoder.hidden
    rows = {**positions}
    rows[medium] = rows.get(medium, 0) + cross.latents
    walk.touch(f"{name}.latents")
    for layer in range(cross.resampler_layers):
        own = f"{name}.layers.{layer}"
        walk.touch(f"{own}.media_norm", f"{own}.latents_norm")
        before = walk.passes["media"]
        walk.products(medium, {f"{own}.q_proj": (hidden, hidden)}, cross.latents)
        after = walk.passes["media"]
        for unit, count in rows.items():
            walk.passes["media"] = before  # keys and values are beside the queries
            walk.products(unit, {f"{own}.{key}": (hidden, hidden) for key in ("k_proj", "v_proj")}, count)
        walk.passes["media"] |= after
        for unit, count in rows.items():
            walk.attention(unit, cross.latents * count * hidden)
        walk.products(medium, {f"{own}.out_proj": (hidden, hidden)}, cross.latents)
        walk.touch(f"{own}.ffn_norm")
        widths = hidden, cross.ffn or config.decoder.ffn
        _two_layers(walk, own, widths, Rows(medium, cross.latents, medium, 0))
    walk.touch(f"{name}.norm")
