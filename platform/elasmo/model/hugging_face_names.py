"""Which tensor of a Hugging Face checkpoint is which of ours: pure tables, in the names that the hub uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from elasmo.config import DecoderConfig, ModelConfig, VisionConfig
from elasmo.model.boxes import Box


@dataclass(frozen=True)
class Place:
    """Where a tensor of theirs lies in one of ours: the whole of it, or one expert's layer of a stack."""

    name: str
    expert: int | None = None

    def box(self, shape: tuple[int, ...]) -> Box | None:
        """The part of our tensor of this shape; None for all of it."""
        if self.expert is None:
            return None
        return ((self.expert, self.expert + 1), *((0, size) for size in shape[1:]))


def names(config: ModelConfig) -> dict[str, Place]:
    """Their name -> our place, for all tensors of a model without a table tower."""
    text = dict(_decoder(config.decoder))
    if config.vision is None and config.audio is None:
        return text
    table = {f"language_model.{name}": place for name, place in text.items()}
    if config.vision is not None:
        theirs = vision_names(config.vision)
        table |= {f"vision_tower.{name}": Place(f"vision.{ours}") for ours, name in theirs.items()}
        for layer in ("linear_1", "linear_2"):
            for kind in ("weight", "bias"):
                table[f"multi_modal_projector.{layer}.{kind}"] = Place(f"vision.projector.{layer}.{kind}")
    if config.audio is not None:
        table |= {f"audio_tower.{name}": Place(f"audio.{name}") for name in _whisper(config.audio.layers)}
        for kind in ("weight", "bias"):
            table[f"multi_modal_projector.linear.{kind}"] = Place(f"audio.projector.{kind}")
    return table


def canonical(name: str) -> str:
    """One of the names in use for a tensor, as the hub's first checkpoints had it.

    Later versions of transformers nest a multimodal model's parts under `model.` and write the language model's prefix
    once too often or too seldom.
    """
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return name


_RENAMED = [
    (re.compile(before), after)
    for before, after in (
        (r"^model\.(vision_tower|audio_tower|multi_modal_projector)\.", r"\1."),
        (r"^(model\.)?language_model\.(model\.)*(embed_tokens|layers|norm)\.", r"language_model.model.\3."),
        (r"^(model\.)?language_model\.lm_head\.", "lm_head."),
        (r"^vision_tower\.(?!vision_model\.)", "vision_tower.vision_model."),
    )
]


def vision_names(config: VisionConfig) -> dict[str, str]:
    """Our name in the tower -> theirs in the vision model."""
    table = {
        "patch_embedding.weight": "vision_model.embeddings.patch_embedding.weight",
        "position_embedding.weight": "vision_model.embeddings.position_embedding.weight",
    }
    if config.kind == "clip":
        table["class_embedding"] = "vision_model.embeddings.class_embedding"
        for kind in ("weight", "bias"):
            table[f"pre_layernorm.{kind}"] = f"vision_model.pre_layrnorm.{kind}"  # their spelling
    else:
        table["patch_embedding.bias"] = "vision_model.embeddings.patch_embedding.bias"
    parts = (
        "layer_norm1",
        "layer_norm2",
        "mlp.fc1",
        "mlp.fc2",
        *(f"self_attn.{x}_proj" for x in ("q", "k", "v", "out")),
    )
    for layer in range(config.layers + 1 + config.feature_layer):
        for part in parts:
            for kind in ("weight", "bias"):
                table[f"layers.{layer}.{part}.{kind}"] = f"vision_model.encoder.layers.{layer}.{part}.{kind}"
    return table


def _decoder(config: DecoderConfig) -> Iterator[tuple[str, Place]]:
    yield "model.embed_tokens.weight", Place("embed_tokens.weight")
    yield "model.norm.weight", Place("decoder.norm.weight")
    if not config.tie_embeddings:
        yield "lm_head.weight", Place("lm_head.weight")
    for layer in range(config.layers):
        theirs, ours = f"model.layers.{layer}", f"decoder.layers.{layer}"
        for name in _attention(config):
            yield f"{theirs}.{name}", Place(f"{ours}.{name}")
        if config.moe is None or not config.moe.has_experts(layer):
            for name in ("gate_proj", "up_proj", "down_proj"):
                for kind in ("weight", "bias") if config.mlp_bias else ("weight",):
                    yield f"{theirs}.mlp.{name}.{kind}", Place(f"{ours}.mlp.{name}.{kind}")
            continue
        mixtral = not config.qk_norm
        block = f"{theirs}.block_sparse_moe" if mixtral else f"{theirs}.mlp"
        yield f"{block}.gate.weight", Place(f"{ours}.mlp.gate.weight")
        for expert in range(config.moe.experts):
            for name, short in (("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
                their_name = short if mixtral else name
                yield f"{block}.experts.{expert}.{their_name}.weight", Place(f"{ours}.mlp.experts.{name}", expert)


def _attention(config: DecoderConfig) -> Iterator[str]:
    yield "input_layernorm.weight"
    yield "post_attention_layernorm.weight"
    for name, bias in (("q", config.qkv_bias), ("k", config.qkv_bias), ("v", config.qkv_bias), ("o", config.out_bias)):
        yield f"self_attn.{name}_proj.weight"
        if bias:
            yield f"self_attn.{name}_proj.bias"
    if config.qk_norm:
        yield "self_attn.q_norm.weight"
        yield "self_attn.k_norm.weight"


def _whisper(layers: int) -> Iterator[str]:
    yield "embed_positions.weight"
    for part in ("conv1", "conv2", "layer_norm"):
        yield f"{part}.weight"
        yield f"{part}.bias"
    for layer in range(layers):
        for part in ("self_attn_layer_norm", "final_layer_norm", "fc1", "fc2"):
            yield f"layers.{layer}.{part}.weight"
            yield f"layers.{layer}.{part}.bias"
        for name in ("q", "k", "v", "out"):
            yield f"layers.{layer}.self_attn.{name}_proj.weight"
            if name != "k":
                yield f"layers.{layer}.self_attn.{name}_proj.bias"
