"""Reads a Hugging Face `config.json` as our model config, and refuses by name what ours cannot be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from elasmo.config import (
    AudioConfig,
    DecoderConfig,
    ModelConfig,
    MoEConfig,
    RopeScalingConfig,
    TokensConfig,
    VisionConfig,
)
from elasmo.model.hugging_face_defaults import (
    DEFAULTS,
    ENDS,
    FEATURE_LAYER,
    LLAVA_VISION,
    HuggingFaceError,
    Raw,
    completed,
)

TEXT = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
MULTIMODAL = {"LlavaForConditionalGeneration": "llava", "Qwen2AudioForConditionalGeneration": "qwen2_audio"}
ARCHITECTURES = (*TEXT, *MULTIMODAL)
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def from_hugging_face(raw: Raw, pixels: Raw | None = None, generation: Raw | None = None) -> tuple[ModelConfig, int]:
    """Our config, and the vocabulary size, of a model described by a `config.json`, read as transformers reads it.

    Args:
        pixels: the image processor's config, for the mean and deviation that its pixels are normalised with.
        generation: `generation_config.json`, which may name more tokens that end an answer.

    Raises:
        HuggingFaceError: names the architecture or setting that has no counterpart here, or a value of a wrong type.
    """
    ends = _ids("generation_config.json: eos_token_id", (generation or {}).get("eos_token_id"))
    listed = raw.get("architectures") or ["none"]
    architecture = str(listed[0]) if isinstance(listed, list) else repr(listed)
    if architecture not in ARCHITECTURES:
        raise HuggingFaceError(f"Architecture {architecture} is unknown here; known are {', '.join(ARCHITECTURES)}.")
    _refuse_quantised(raw, "")
    if architecture in TEXT:
        kind = TEXT[architecture]
        text = completed(raw, kind)
        tokens = _tokens(text, kind, text["vocab_size"], ends)
        config = ModelConfig(decoder=_decoder(text, kind), vision=None, audio=None, table=None, tokens=tokens)
        return config, int(text["vocab_size"])
    llava = architecture.startswith("Llava")
    outer = completed(raw, MULTIMODAL[architecture])
    stated = _section(raw, "text_config", {})
    kind = _kind(stated, "text_config", "llama" if llava else "qwen2", tuple(TEXT.values()))
    text = completed(stated, kind, "text_config.")
    if raw.get("tie_word_embeddings", False) not in (True, False):
        raise HuggingFaceError(
            f"config.json: tie_word_embeddings is {raw['tie_word_embeddings']!r}, not true or false."
        )
    text["tie_word_embeddings"] = text["tie_word_embeddings"] or bool(raw.get("tie_word_embeddings", False))
    named = {key: value for key, value in outer.items() if value is not None}
    config = ModelConfig(
        decoder=_decoder(text, kind),
        vision=_vision(outer, pixels or {}) if llava else None,
        audio=None if llava else _audio(_section(raw, "audio_config", {})),
        table=None,
        tokens=_tokens({**stated, **named}, kind, text["vocab_size"], ends, "image" if llava else "audio"),
    )
    return config, int(text["vocab_size"])


def _section(raw: Raw, name: str, default: Raw) -> Raw:
    """A section of the file; the default where it is absent or null."""
    section = raw.get(name)
    if section is None:
        return default
    if not isinstance(section, Mapping):
        raise HuggingFaceError(f"config.json: {name} is {section!r}; it must be a section of settings.")
    _refuse_quantised(section, f"{name}.")
    return section


def _kind(section: Raw, name: str, default: str, known: tuple[str, ...]) -> str:
    kind = section.get("model_type", default)
    if kind not in known:
        raise HuggingFaceError(f"{name}.model_type is {kind!r}; known are {', '.join(known)}.")
    return str(kind)


def _refuse_quantised(section: Raw, where: str) -> None:
    settings = section.get("quantization_config")
    if settings:
        method = settings.get("quant_method", "unnamed") if isinstance(settings, Mapping) else settings
        raise HuggingFaceError(
            f"config.json: {where}quantization_config is set (quant_method {method}); only float weights are read, so "
            "import the model before its quantisation, or dequantise it with transformers and save it."
        )


def _decoder(raw: Raw, kind: str) -> DecoderConfig:
    """Of a completed section."""
    _refuse(raw, kind)
    attention_bias = bool(raw.get("attention_bias", False)) and "attention_bias" in DEFAULTS[kind]
    moe = None
    if kind == "mixtral":
        moe = MoEConfig(
            experts=raw["num_local_experts"],
            top_k=raw["num_experts_per_tok"],
            ffn=raw["intermediate_size"],
            aux_loss=raw["router_aux_loss_coef"],
        )
    elif kind == "qwen3_moe":
        dense = raw.get("mlp_only_layers") or []
        if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
            raise HuggingFaceError(f"config.json: mlp_only_layers is {dense!r}; it must be a list of whole numbers.")
        moe = MoEConfig(
            experts=raw["num_experts"],
            top_k=raw["num_experts_per_tok"],
            ffn=raw["moe_intermediate_size"],
            norm_topk=raw["norm_topk_prob"],
            aux_loss=raw["router_aux_loss_coef"],
            every=raw["decoder_sparse_step"],
            dense_layers=tuple(dense),
        )
    theta, scaling = _rope(raw)
    return DecoderConfig(
        hidden=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=raw["num_attention_heads"],
        kv_heads=raw["num_key_value_heads"] or raw["num_attention_heads"],
        head_dim=raw["head_dim"],
        ffn=raw["intermediate_size"],
        max_seq=raw["max_position_embeddings"],
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=raw["rms_norm_eps"],
        qkv_bias=kind == "qwen2" or attention_bias,
        out_bias=attention_bias,
        mlp_bias=bool(raw.get("mlp_bias", False)) and "mlp_bias" in DEFAULTS[kind],
        qk_norm=kind.startswith("qwen3"),
        tie_embeddings=raw["tie_word_embeddings"],
        moe=moe,
    )


def _refuse(raw: Raw, kind: str) -> None:
    activation = raw["hidden_act"]
    if activation != "silu":
        raise HuggingFaceError(f"hidden_act is {activation!r}; only silu is known here.")
    window = raw.get("sliding_window")
    if window is not None and (kind == "mixtral" or raw.get("use_sliding_window", False)):
        raise HuggingFaceError(f"sliding_window is {window}; attention here has no window, so it would differ.")


def _rope(raw: Raw) -> tuple[float, RopeScalingConfig | None]:
    """Base and scaling, as newer files (rope_parameters) and older ones (rope_theta, rope_scaling) have them."""
    stated = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(stated, Mapping):
        raise HuggingFaceError(f"config.json: rope_parameters is {stated!r}; it must be a section of settings.")
    settings = {**stated}
    theta = _positive("rope_theta", settings.pop("rope_theta", raw["rope_theta"]))
    name = settings.get("rope_type", settings.get("type", "default"))
    if name == "default":
        return theta, None
    if name not in ("linear", "llama3", "yarn"):
        raise HuggingFaceError(f"rope_type is {name!r}; known are default, linear, llama3 and yarn.")
    values: dict[str, Any] = {
        "kind": name,
        "factor": _positive(f"rope_type {name}: factor", settings.get("factor")),
        "original_max_seq": settings.get("original_max_position_embeddings")
        or raw.get("original_max_position_embeddings")
        or raw["max_position_embeddings"],
    }
    for key in ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"):
        if settings.get(key) is not None:
            values[key] = _positive(f"rope_type {name}: {key}", settings[key])
    if values.get("low_freq_factor", 1.0) >= values.get("high_freq_factor", 4.0):
        raise HuggingFaceError("rope_type llama3: low_freq_factor must be less than high_freq_factor.")
    known = {"rope_type", "type", "factor", "original_max_position_embeddings", "partial_rotary_factor", *values}
    strange = sorted(set(settings) - known)
    if strange or settings.get("partial_rotary_factor", 1.0) != 1.0:
        what = strange[0] if strange else "partial_rotary_factor"
        raise HuggingFaceError(f"rope setting {what}={settings[what]} has no counterpart here.")
    return theta, RopeScalingConfig(**values)


def _positive(key: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise HuggingFaceError(f"config.json: {key} is {value!r}; it must be a number above 0.")
    return float(value)


def _vision(raw: Raw, pixels: Raw) -> VisionConfig:
    stated = _section(raw, "vision_config", LLAVA_VISION)
    model_type = _kind(stated, "vision_config", "clip_vision_model", ("clip_vision_model", "siglip_vision_model"))
    tower = completed(stated, model_type, "vision_config.")
    clip = model_type == "clip_vision_model"
    layers = tower["num_hidden_layers"]
    if raw["projector_hidden_act"] != "gelu" or not raw["multimodal_projector_bias"]:
        raise HuggingFaceError("multi_modal_projector is not two layers with biases and GELU between; none other here.")
    strategy = raw["vision_feature_select_strategy"]
    if strategy not in ("default", "full"):
        raise HuggingFaceError(f"vision_feature_select_strategy is {strategy!r}; known are default and full.")
    if strategy == "default" and not clip:
        raise HuggingFaceError(
            "vision_feature_select_strategy is 'default', which drops an image's first token; SigLIP has a patch there "
            "and no tower here leaves it out. Models trained with 'full' can be imported."
        )
    return VisionConfig(
        kind="clip" if clip else "siglip",
        image_size=tower["image_size"],
        channels=tower["num_channels"],
        patch=tower["patch_size"],
        hidden=tower["hidden_size"],
        layers=layers,
        heads=tower["num_attention_heads"],
        ffn=tower["intermediate_size"],
        activation=tower["hidden_act"],
        norm_eps=tower["layer_norm_eps"],
        feature_layer=_feature_layer(raw.get("vision_feature_layer", FEATURE_LAYER), layers),
        select="full" if clip and strategy == "full" else "patch",
        projector="mlp",
        mean=_channels(pixels, "image_mean", _CLIP_MEAN if clip else (0.5,), 0.0),
        std=_channels(pixels, "image_std", _CLIP_STD if clip else (0.5,), 1.0),
    )


def _feature_layer(layer: Any, layers: int) -> int:
    """From the end, as our config has it; the input of the first layer is -layers - 1."""
    if isinstance(layer, list) and len(layer) == 1:
        layer = layer[0]
    if type(layer) is not int:
        raise HuggingFaceError(f"vision_feature_layer is {layer}; one layer is used here, several are not.")
    if not -layers - 1 <= layer <= layers:
        raise HuggingFaceError(
            f"vision_feature_layer is {layer}; a tower of {layers} layers has -{layers + 1} to {layers}."
        )
    return layer if layer < 0 else layer - layers - 1


def _channels(pixels: Raw, key: str, default: tuple[float, ...], unnormalised: float) -> tuple[float, ...]:
    """Mean or deviation of pixels in 0..1."""
    if pixels.get("do_rescale", True) is False or pixels.get("rescale_factor", 1 / 255) not in (
        1 / 255,
        0.00392156862745098,
    ):
        raise HuggingFaceError(
            "The image processor leaves pixels in another range than 0..1; none other is known here."
        )
    if pixels.get("do_normalize", True) is False:
        return (unnormalised,)
    values = pixels.get(key, default)
    values = [values] if type(values) in (int, float) else values
    numbers = isinstance(values, list | tuple) and all(type(x) in (int, float) and math.isfinite(x) for x in values)
    if not numbers or (key == "image_std" and min(values, default=1) <= 0):
        above = " above 0" if key == "image_std" else ""
        raise HuggingFaceError(f"The image processor's {key} is {values!r}; it must be one number{above} a channel.")
    return tuple(values)


def _audio(stated: Raw) -> AudioConfig:
    kind = _kind(stated, "audio_config", "qwen2_audio_encoder", ("qwen2_audio_encoder",))
    tower = completed(stated, kind, "audio_config.")
    if tower["activation_function"] != "gelu" or tower["scale_embedding"]:
        raise HuggingFaceError("audio_config has another activation than gelu, or scale_embedding; not known here.")
    positions = tower["max_source_positions"]
    return AudioConfig(
        kind="whisper",
        sample_rate=16_000,
        n_fft=400,
        hop=160,
        max_s=2 * positions * 160 / 16_000,
        n_mels=tower["num_mel_bins"],
        hidden=tower["d_model"],
        layers=tower["encoder_layers"],
        heads=tower["encoder_attention_heads"],
        ffn=tower["encoder_ffn_dim"],
        max_positions=positions,
    )


def _ids(key: str, value: Any) -> list[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int for token in ids):
        raise HuggingFaceError(f"{key} is {value!r}; it must be a token id or a list of them.")
    return ids


def _tokens(raw: Raw, kind: str, vocab: int, ends: list[int], medium: str | None = None) -> TokensConfig:
    """Ids of the config, and further ends. What a model has no token for gets an id that never occurs."""
    stated = _ids("config.json: eos_token_id", raw.get("eos_token_id", None if ends else ENDS.get(kind)))
    pad = _ids("config.json: pad_token_id", raw.get("pad_token_id"))
    named = {} if medium is None else {medium: int(raw[f"{medium}_token_index"])}
    free = vocab
    if any(vocab <= token < vocab + 3 for token in (*named.values(), *stated, *ends)):
        free = max(*named.values(), *stated, *ends, vocab) + 1
    return TokensConfig(
        pad=pad[0] if pad and pad[0] >= 0 else 0,
        end=tuple(dict.fromkeys([*stated, *ends])),
        never=(),
        image=named.get("image", free),
        audio=named.get("audio", free + 1),
        table=free + 2,
    )
