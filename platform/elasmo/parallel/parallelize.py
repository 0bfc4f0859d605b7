"""Applies a layout to a model: one function, read from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from elasmo.model.decoder import DecoderLayer
from elasmo.model.moe import MoE
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.parallel.experts import cut_experts
from elasmo.parallel.layout import stage_rank
from elasmo.parallel.mesh import Mesh
from elasmo.parallel.recompute import recompute_layer
from elasmo.parallel.sequence import TokensOverRanks
from elasmo.parallel.shards import Dim, Shard, cut, whole
from elasmo.parallel.tensor import VocabEmbedding, cut_layer

TOWERS = ("vision.", "vision_resampler.", "audio.", "audio_resampler.", "table.")


def parallelize(model: MultimodalDecoder, mesh: Mesh, stages: Sequence[range]) -> dict[str, Shard]:
    """Cuts a model in place for this rank.

    The order matters: what another stage holds is dropped first, so that nothing is cut in vain; experts are cut
    before tensors, so that both cuts of an expert's weight are recorded in its box; layers forget activations last,
    when their blocks are what they will be.

    Args:
        model: whole, with the same weights on every rank.
        mesh: groups of the layout.
        stages: decoder layers of every stage of the whole pipeline, in order; `stage_rank` says where.

    Returns:
        What this rank holds of each parameter, by full parameter name.
    """
    layout = mesh.layout
    tied = model.lm_head is None
    shards = {name: whole(parameter) for name, parameter in model.named_parameters()}

    # Pipeline: keep this rank's layers under their global numbers, and the ends where they belong.
    if layout.pp > 1:
        here = [number for number in range(len(stages)) if stage_rank(layout, number) == mesh.place.pp]
        first, last = 0 in here, len(stages) - 1 in here
        own = [layer for number in here for layer in stages[number]]
        model.decoder.layers = nn.ModuleDict({str(i): model.decoder.layers[i] for i in own})  # type: ignore[assignment]
        if not first and not (tied and last):
            model.embed_tokens = None  # type: ignore[assignment]
        if not last:
            model.decoder.norm = None  # type: ignore[assignment]
            model.lm_head = None
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, DecoderLayer)}

    # Experts: this rank keeps some; the others are reached by all-to-all.
    for name, layer in layers.items():
        if isinstance(layer.mlp, MoE):
            if layout.sp > 1:
                layer.mlp.shards = TokensOverRanks(mesh.sp)
            if layout.ep > 1:
                cut_experts(layer.mlp, f"{name}.mlp.", shards, mesh.ep)

    # Tensor parallel: heads and channels of each layer, rows of the vocabulary.
    if layout.tp > 1:
        for name, layer in layers.items():
            cut_layer(layer, f"{name}.", shards, mesh.tp, layout.tp_sequence)
        if model.embed_tokens is not None:
            cut(model.embed_tokens, "weight", shards, "embed_tokens.weight", 0, mesh.tp.size, mesh.tp.rank)
            start = shards["embed_tokens.weight"].box[0][0]
            model.embed_tokens = VocabEmbedding(model.embed_tokens, start)  # type: ignore[assignment]
        if model.lm_head is not None:
            cut(model.lm_head, "weight", shards, "lm_head.weight", 0, mesh.tp.size, mesh.tp.rank)

    for layer in layers.values():
        recompute_layer(layer, layout.recompute)

    held = {name for name, _ in model.named_parameters()}
    ends_tied = mesh.ends.size > 1 and tied
    return {name: _with_gradient_rules(name, shard, mesh, ends_tied) for name, shard in shards.items() if name in held}


def _with_gradient_rules(name: str, shard: Shard, mesh: Mesh, ends_tied: bool) -> Shard:
    """Over which groups a gradient is partial, and which of several copies counts."""
    layout, place = mesh.layout, mesh.place
    if name.startswith(TOWERS):
        # Every rank of a slot encodes other media.
        dims: list[Dim] = ["tp", "ep", "pp"]
        return replace(shard, partial=_sized(dims, mesh), counted=mesh.unlike.rank == 0)
    cut_by_tp = layout.tp > 1 and name.endswith(_CUT_BY_TP)
    partial: list[Dim] = []
    if not cut_by_tp and (layout.tp_sequence or name.endswith(_ON_SHARDED_HEADS)):
        partial.append("tp")
    expert = ".experts." in name
    if not expert:
        partial.append("ep")
    counted = (expert or place.ep == 0) and (cut_by_tp or place.tp == 0)
    if ends_tied and name == "embed_tokens.weight":
        partial.append("ends")
        counted = counted and mesh.ends.rank == 0
    return replace(shard, partial=_sized(partial, mesh), counted=counted)


_CUT_BY_TP = (
    *(f"{name}_proj.weight" for name in ("q", "k", "v", "o", "gate", "up", "down")),
    *(f"{name}_proj.bias" for name in ("q", "k", "v", "gate", "up")),
    *(f"{name}_proj.lora_b" for name in ("q", "k", "v", "gate", "up")),
    *(f"{name}_proj.lora_a" for name in ("o", "down")),
    *(f"experts.{name}_proj" for name in ("gate", "up", "down")),
    "embed_tokens.weight",
    "lm_head.weight",
)
_ON_SHARDED_HEADS = (
    "q_norm.weight",
    "k_norm.weight",
    *(f"mlp.gate.{kind}" for kind in ("weight", "lora_a", "lora_b")),
    *(f"{name}_proj.lora_a" for name in ("q", "k", "v", "gate", "up")),
    *(f"{name}_proj.lora_b" for name in ("o", "down")),
)
"""Whole on every tensor-parallel rank, but each rank's gradient comes from its own heads or channels."""


def _sized(dims: list[Dim], mesh: Mesh) -> tuple[Dim, ...]:
    return tuple(dim for dim in dims if getattr(mesh, dim).size > 1)
