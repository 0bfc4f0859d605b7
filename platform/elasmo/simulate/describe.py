"""Descriptions of models from where they are written: Elasmo's config, a Hugging Face config.json, a table's row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elasmo.config import AudioConfig, ModelConfig, TableConfig, VisionConfig
from elasmo.simulate.model import (
    Attention,
    CrossBlock,
    Experts,
    FeedForward,
    Layer,
    Model,
    ModelError,
    Resampler,
    Tower,
    decoder,
)
from elasmo.simulate.published import optional_number, read_table, whole_number


def from_config(config: ModelConfig, vocab: int, name: str = "", frozen: tuple[str, ...] = ()) -> Model:
    """A model of Elasmo's config tree.

    Args:
        vocab: tokens of its vocabulary.
        frozen: parts that are not trained, of `decoder`, `vision`, `audio`, `table`.
    """
    ours = config.decoder
    attention = Attention(
        ours.heads, ours.kv_heads, ours.head_size, ours.head_size,
        bias=ours.qkv_bias, out_bias=ours.out_bias, head_norm=ours.qk_norm,
    )  # fmt: skip
    moe, cross = ours.moe, config.cross_attention
    experts = None
    if moe is not None:
        experts = Experts(moe.experts, moe.top_k, FeedForward(moe.ffn), capacity=moe.capacity_factor)
    block = CrossBlock(cross.heads, FeedForward(cross.ffn or ours.ffn)) if config.attends else None
    layers = []
    for number in range(ours.layers):
        routed = moe is not None and moe.has_experts(number)
        layers.append(
            Layer(
                attention,
                None if routed else FeedForward(ours.ffn, bias=ours.mlp_bias),
                experts if routed else None,
                block if cross.has_block(number) else None,
            )
        )
    sampled = None
    if config.attends:
        sampled = Resampler(ours.hidden, cross.latents, cross.resampler_layers, cross.heads, cross.ffn or ours.ffn)
    towers = []
    if config.vision is not None:
        towers.append(_vision(config.vision, ours.hidden, sampled))
    if config.audio is not None:
        towers.append(_audio(config.audio, ours.hidden, sampled))
    if config.table is not None:
        towers.append(_table(config.table, ours.hidden))
    named = tuple(replace(tower, frozen=tower.kind in frozen) for tower in towers)
    return Model(
        ours.hidden, tuple(layers), vocab, ours.tie_embeddings, towers=named,
        frozen_decoder="decoder" in frozen, name=name,
    )  # fmt: skip


def _encoder(hidden: int, heads: int, bias: bool = True) -> Attention:
    return Attention(heads, heads, hidden // heads, hidden // heads, bias=bias, out_bias=bias)


def _vision(config: VisionConfig, out: int, resampler: Resampler | None) -> Tower:
    h, patch, channels = config.hidden, config.patch, config.channels
    patches = (config.image_size // patch) ** 2
    positions = patches + (config.kind == "clip")
    if config.kind == "stem":
        convolutions = config.stem * (channels * 9 + 1) + config.stem * (config.stem * 9 + 1)
        made, other = convolutions + h * (config.stem * patch * patch + 1), 2 * h
        width = config.stem * patch * patch
    else:
        clip = config.kind == "clip"
        width = channels * patch * patch
        made = h * width + h  # SigLIP's bias, or CLIP's class token
        other = 2 * h if clip else 0
    if config.kind == "stem":
        made += config.tokens * h
    else:
        made += positions * h
    used = config.layers if config.kind == "stem" else config.layers + 1 + config.feature_layer
    return Tower(
        "vision", h, max(used, 0), _encoder(h, config.heads), FeedForward(config.ffn, False, True), positions,
        1 if resampler else config.tokens, (h, out, out) if config.projector == "mlp" else (h, out), made, width, other,
        resampler,
    )  # fmt: skip


def _audio(config: AudioConfig, out: int, resampler: Resampler | None) -> Tower:
    h = config.hidden
    made = h * (3 * config.n_mels + 1) + h * (3 * h + 1)
    if config.kind == "whisper":
        positions = config.max_positions
        tokens = positions // 2 if config.pool else positions
        made += positions * h - config.layers * h  # Whisper's keys have no bias
    else:
        positions = tokens = int(config.max_s * config.sample_rate / config.hop + 3) // 4
    return Tower(
        "audio", h, config.layers, _encoder(h, config.heads), FeedForward(config.ffn, False, True), positions,
        1 if resampler else tokens, (h, out), made, 3 * config.n_mels, 2 * h, resampler,
    )  # fmt: skip


def _table(config: TableConfig, out: int) -> Tower:
    h = config.hidden
    made = h * (2 * config.frequencies + 2) + h * (h + 1) + config.text_buckets * h
    return Tower("table", h, 0, _encoder(h, 1), FeedForward(h, False), 1, 1, (h, out), made, h)


def from_hugging_face(raw: Mapping[str, Any], name: str = "") -> Model:
    """A model of Hugging Face's `config.json`, of any decoder family that uses the usual keys.

    Raises:
        ModelError: a key that is needed is missing.
    """
    text = raw.get("text_config") or raw.get("llm_config") or raw.get("thinker_config", {}).get("text_config") or raw
    text = {**{key: value for key, value in raw.items() if not isinstance(value, dict)}, **text}
    model = _text(text, name)
    vision = raw.get("vision_config")
    if vision:
        model = replace(model, towers=(*model.towers, _hugging_face_vision(vision, raw, model.hidden)))
    audio = raw.get("audio_config")
    if audio:
        model = replace(model, towers=(*model.towers, _hugging_face_audio(audio, model.hidden)))
    return model


def _first(raw: Mapping[str, Any], *keys: str, default: Any = None) -> Any:
    for key in keys:
        if raw.get(key) is not None:
            return raw[key]
    if default is None:
        raise ModelError(f"config.json has none of {', '.join(keys)}; one of them is needed.")
    return default


def _text(raw: Mapping[str, Any], name: str) -> Model:
    hidden = int(_first(raw, "hidden_size", "n_embd", "d_model"))
    heads = int(_first(raw, "num_attention_heads", "n_head", "n_heads"))
    layers = int(_first(raw, "num_hidden_layers", "n_layer", "n_layers"))
    vocab = int(_first(raw, "vocab_size"))
    kv = int(_first(raw, "num_key_value_heads", "num_kv_heads", "n_head_kv", default=heads))
    if raw.get("multi_query"):
        kv = 1
    size = raw.get("head_dim")
    kind = str(raw.get("model_type", ""))
    act = str(raw.get("hidden_act") or raw.get("activation_function") or raw.get("hidden_activation") or "")
    plain = kind in {"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "mpt", "falcon", "phi", "starcoder2",
                     "gpt_bigcode", "nemotron", "codegen", "phi-msft"}  # fmt: skip
    gated = not plain and "relu2" not in act
    ffn = raw.get("intermediate_size") or raw.get("ffn_dim") or raw.get("n_inner") or raw.get("ffn_hidden_size")
    ffn = int(ffn) if ffn else int(4 * hidden if not raw.get("expansion_ratio") else raw["expansion_ratio"] * hidden)
    attention = None
    if raw.get("kv_lora_rank"):
        nope, rope = int(raw["qk_nope_head_dim"]), int(raw["qk_rope_head_dim"])
        attention = Attention(
            heads, heads, nope + rope, int(raw["v_head_dim"]), q_rank=int(raw.get("q_lora_rank") or 0),
            kv_rank=int(raw["kv_lora_rank"]), rope_dim=rope,
        )  # fmt: skip
    else:
        width = int(size) if size else hidden // heads
        bias = bool(raw.get("attention_bias") or raw.get("qkv_bias") or raw.get("bias"))
        bias = bias or kind in {"qwen2", "qwen2_moe", "gpt2", "opt", "gpt_neox"}
        attention = Attention(
            heads, kv, width, width, bias=bias, out_bias=bias and not kind.startswith("qwen2"),
            head_norm=kind.startswith(("qwen3", "gemma3")),
        )  # fmt: skip
    count = _first(raw, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts", default=0)
    experts, first, every = None, 0, 1
    if count:
        width = int(_first(raw, "moe_intermediate_size", "expert_ffn_hidden_size", default=ffn))
        shared = raw.get("shared_expert_intermediate_size") or int(raw.get("n_shared_experts") or 0) * width
        if kind.startswith("llama4"):
            shared, ffn = width, int(raw.get("intermediate_size_mlp") or ffn)
        experts = Experts(
            int(count), int(_first(raw, "num_experts_per_tok", "moe_topk", "num_selected_experts", default=2)),
            FeedForward(width, gated, kind == "gpt_oss"), int(shared),
        )  # fmt: skip
        first = int(raw.get("first_k_dense_replace") or 0)
        every = int(raw.get("decoder_sparse_step") or raw.get("interleave_moe_layer_step") or 1)
    windows: tuple[int | None, ...] = (None,)
    window = raw.get("sliding_window")
    kinds = raw.get("layer_types")
    if window and kinds:
        windows = tuple(int(window) if "sliding" in each else None for each in kinds)
    elif window and raw.get("sliding_window_pattern"):
        windows = (int(window),) * (int(raw["sliding_window_pattern"]) - 1) + (None,)
    elif window and kind == "mistral" and raw.get("use_sliding_window", True):
        windows = (int(window),)
    learned = kind in {"gpt2", "opt"}
    return decoder(
        layers=layers, hidden=hidden, heads=heads, ffn=ffn, vocab=vocab, gated=gated,
        tied=bool(raw.get("tie_word_embeddings", plain and kind != "gpt_neox")), experts=experts, first_dense=first,
        every=every, attention=attention, windows=windows, bias=plain and kind not in {"mpt", "falcon", "nemotron"},
        positions=int(raw.get("max_position_embeddings") or raw.get("n_positions") or 0) if learned else 0,
        head_dim=attention.head_dim, kv_heads=kv, norm_width=2 if plain and kind != "mpt" else 1, name=name,
    )  # fmt: skip


def _hugging_face_vision(vision: Mapping[str, Any], raw: Mapping[str, Any], out: int) -> Tower:
    h = int(_first(vision, "hidden_size", "embed_dim", "width", default=1024))
    heads = int(_first(vision, "num_attention_heads", "num_heads", "heads", default=16))
    layers = int(_first(vision, "num_hidden_layers", "depth", "layers", default=24))
    ffn = int(_first(vision, "intermediate_size", default=4 * h))
    patch = int(_first(vision, "patch_size", default=14))
    size = vision.get("image_size")
    size = int(size[0] if isinstance(size, list | tuple) else size or 448)
    merge = int(vision.get("spatial_merge_size") or 1)
    patches = (size // patch) ** 2
    layer = raw.get("vision_feature_layer", -1)
    run = layers + 1 + layer if isinstance(layer, int) and layer < 0 else layers
    tokens = int(raw.get("mm_tokens_per_image") or patches // (merge * merge))
    width = 3 * patch * patch * int(vision.get("temporal_patch_size") or 1)
    return Tower(
        "vision", h, run, _encoder(h, heads), FeedForward(ffn, bool(vision.get("hidden_act") == "silu"), True),
        patches + (str(vision.get("model_type", "")).startswith("clip")), tokens, (h * merge * merge, out, out),
        h * width + (patches + 1) * h, width, 4 * h,
    )  # fmt: skip


def _hugging_face_audio(audio: Mapping[str, Any], out: int) -> Tower:
    h = int(_first(audio, "d_model", "hidden_size", default=1280))
    mels, positions = int(audio.get("num_mel_bins") or 128), int(audio.get("max_source_positions") or 1500)
    made = h * (3 * mels + 1) + h * (3 * h + 1) + positions * h
    return Tower(
        "audio", h, int(_first(audio, "encoder_layers", "num_hidden_layers", default=32)),
        _encoder(h, int(_first(audio, "encoder_attention_heads", "num_attention_heads", default=20))),
        FeedForward(int(_first(audio, "encoder_ffn_dim", "intermediate_size", default=4 * h)), False, True),
        positions, positions // 2, (h, out), made, 3 * mels, 2 * h,
    )  # fmt: skip


def from_shape(row: Mapping[str, str]) -> Model:
    """A model of a row with columns layers, hidden, heads, kv_heads, ffn, vocab, experts, topk and the like.

    What the row leaves open is inferred from its own numbers: `gated`, `head_dim` and tied embeddings are chosen so
    that the parameters come closest to `n_params_b`; without it, a feed-forward network of 4 x hidden is a plain one.
    A row's `notes` are read for `head_dim N`, `gated` and the keys of the `extra` column.

    Raises:
        ModelError: a number that is needed is blank, or contradicts another.
    """

    def whole(key: str) -> int | None:
        return whole_number(row, key)

    needed = {key: whole(key) for key in ("layers", "hidden")}
    if needed["hidden"]:
        # Blank: heads of 128, and a vocabulary that weighs little in a large model.
        needed |= {"heads": whole("heads") or max(1, needed["hidden"] // 128), "vocab": whole("vocab") or 32_000}
    blank = [key for key, value in needed.items() if not value]
    if blank:
        raise ModelError(f"The row's {', '.join(blank)} is blank; a model cannot be described without.")
    layers, hidden, heads, vocab = (int(needed[key] or 0) for key in ("layers", "hidden", "heads", "vocab"))
    notes = f"{row.get('extra', '')};{row.get('notes', '')};{row.get('attention', '')}"
    experts_count, ffn = whole("experts"), whole("ffn")
    expert_width = whole("moe_ffn") or ffn
    if ffn is None:
        ffn = 4 * hidden
    shared_experts = whole("shared_experts")
    if whole("moe_ffn") is None and (experts_count or 0) >= 32 and ffn > 2 * hidden:
        # Many experts as wide as a dense network would be absurd: `ffn` is that of the dense layers, which is chosen to
        # be as wide as what a token passes: its experts, and mostly one that all share (DeepSeek-V3, Kimi K2, Qwen3).
        wide = (whole("topk") or 1) + (1 if shared_experts is None else shared_experts)
        expert_width = ffn // wide
        shared_experts = wide - (whole("topk") or 1)
    stated = {key: int(value) for key, value in re.findall(r"(\w+) ?= ?(\d+)", notes)}
    attention = None
    if "kv_lora_rank" in stated:
        nope, rope = stated.get("qk_nope_head_dim", 128), stated.get("qk_rope_head_dim", 64)
        attention = Attention(
            heads, heads, nope + rope, stated.get("v_head_dim", 128), q_rank=stated.get("q_lora_rank", 0),
            kv_rank=stated["kv_lora_rank"], rope_dim=rope,
        )  # fmt: skip
    routed = bool(experts_count and experts_count > 1)
    first = whole("first_dense_layers") or 0
    every = stated.get("interleave_moe_layer_step", 1)
    windows: tuple[int | None, ...] = (None,)
    if "sliding_window_size" in stated:
        windows = (stated["sliding_window_size"], None)
    said = row.get("gated", "").strip().lower()
    known_gated = True if said in ("yes", "true", "1") or "gated" in row.get("notes", "") else None
    gates = [known_gated] if known_gated else [True] if routed else [ffn != 4 * hidden]
    size = whole("head_dim")
    if size is None and (found := re.search(r"head_dim (\d+)", notes)):
        size = int(found[1])
    if size is None and hidden % heads:
        raise ModelError(f"heads={heads} must divide hidden={hidden}, or head_dim must be given.")
    sizes = [size] if size else [hidden // heads]
    published = optional_number(row.get("n_params_b"))
    ties = [False]
    if published:
        gates = [known_gated] if known_gated is not None else [gates[0], not gates[0]]
        sizes = [size] if size else sorted({hidden // heads, 128}, key=lambda each: each != hidden // heads)
        ties = [False, True]
    elif not gates[0]:
        ties = [True]
    candidates = []
    for gated in gates:
        for width in sizes:
            for tied in ties:
                experts = None
                if routed:
                    each = FeedForward(int(expert_width or ffn), bool(gated))
                    shared = (shared_experts or 0) * each.width
                    experts = Experts(int(experts_count or 0), whole("topk") or 1, each, shared)
                candidates.append(
                    decoder(
                        layers=layers,
                        hidden=hidden,
                        heads=heads,
                        ffn=ffn,
                        vocab=vocab,
                        kv_heads=whole("kv_heads"),
                        head_dim=width,
                        gated=bool(gated),
                        tied=tied,
                        experts=experts,
                        first_dense=first,
                        every=every,
                        attention=attention,
                        windows=windows,
                        bias=not gated,
                        norm_width=1 if gated else 2,
                        positions=0,
                        name=row.get("model", ""),
                    )
                )
    if not published:
        return candidates[0]
    # The first, which the defaults would choose, unless another is clearly closer to what was published.
    errors = [abs(each.parameters / (published * 1e9) - 1) for each in candidates]
    best = min(range(len(candidates)), key=errors.__getitem__)
    return candidates[best] if errors[best] < errors[0] - 0.02 or errors[0] > 0.1 else candidates[0]


def shape_names() -> list[str]:
    """Names of the models whose shapes the published table gives."""
    return [row["model"] for row in read_table("M00_model_shapes")]


def known_model(name: str) -> Model:
    """A model of the published table of shapes, for a person who names one; the cost model itself never does.

    Raises:
        ModelError: not in it.
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for row in read_table("M00_model_shapes"):
        if re.sub(r"[^a-z0-9]", "", row["model"].lower()) == plain:
            return from_shape({**row, "gated": "yes" if _gated_family(row) else row["gated"]})
    raise ModelError(
        f"model={name} is not among the published shapes; use one of {', '.join(shape_names())}, a config.json or a "
        "config of Elasmo."
    )


def _gated_family(row: Mapping[str, str]) -> bool:
    """The table says `no` where its source does not say: a width that is not 4 x hidden has three matrices."""
    ffn, hidden = optional_number(row["ffn"]), optional_number(row["hidden"])
    return bool(ffn and hidden and ffn != 4 * hidden) or bool(row["experts"])
