"""Translates a Hugging Face `config.json` into our model config and back, and refuses by name what ours cannot be."""

from __future__ import annotations

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

Raw = Mapping[str, Any]
TEXT = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
ARCHITECTURES = (*TEXT, "LlavaForConditionalGeneration", "Qwen2AudioForConditionalGeneration")
_DEFAULT_THETA = {"mixtral": 1e6}
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class HuggingFaceError(ValueError):
    """A Hugging Face model that cannot be imported, or a model of ours that cannot be exported, with the reason."""


def from_hugging_face(raw: Raw, pixels: Raw | None = None, generation: Raw | None = None) -> tuple[ModelConfig, int]:
    """Our config, and the vocabulary size, of a model described by a `config.json`.

    Args:
        pixels: the image processor's config, for the mean and deviation that its pixels are normalised with.
        generation: `generation_config.json`, which may name more tokens that end an answer.

    Raises:
        HuggingFaceError: names the architecture or setting that has no counterpart here.
    """
    ends = _ids((generation or {}).get("eos_token_id"))
    named = raw.get("architectures") or ["none"]
    architecture = str(named[0])
    if architecture in TEXT:
        decoder, vocab_size = _decoder(raw, TEXT[architecture]), int(raw["vocab_size"])
        return ModelConfig(decoder=decoder, vision=None, audio=None, table=None, tokens=_tokens(raw, ends)), vocab_size
    if architecture not in ARCHITECTURES:
        raise HuggingFaceError(f"Architecture {architecture} is unknown here; known are {', '.join(ARCHITECTURES)}.")
    text = raw["text_config"]
    kind = str(text.get("model_type", "llama"))
    if kind not in TEXT.values():
        raise HuggingFaceError(f"text_config.model_type is {kind!r}; known are {', '.join(TEXT.values())}.")
    tied = bool(text.get("tie_word_embeddings", raw.get("tie_word_embeddings", False)))
    decoder = _decoder({**text, "tie_word_embeddings": tied}, kind)
    llava = architecture.startswith("Llava")
    config = ModelConfig(
        decoder=decoder,
        vision=_vision(raw, pixels or {}) if llava else None,
        audio=None if llava else _audio(raw["audio_config"]),
        table=None,
        tokens=_tokens({**text, **raw}, ends),
    )
    return config, int(text.get("vocab_size", 32000))


def to_hugging_face(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    """The `config.json` of a model of ours.

    Raises:
        HuggingFaceError: names what transformers has no architecture for.
    """
    if config.table is not None:
        raise HuggingFaceError("model.table is set; transformers has no table tower, train without it to export.")
    if config.attends:
        raise HuggingFaceError("model.fusion=cross_attention has no architecture in transformers; train with sequence.")
    if config.vision is not None and config.audio is not None:
        raise HuggingFaceError("model.vision and model.audio are both set; transformers has no such model of these.")
    text = _text(config, vocab_size)
    if config.vision is None and config.audio is None:
        return text
    outer: dict[str, Any] = {"text_config": text, "tie_word_embeddings": config.decoder.tie_embeddings}
    if config.vision is not None:
        return {**outer, **_llava(config.vision), "image_token_index": config.tokens.image}
    assert config.audio is not None  # one of the two is set
    return {**outer, **_qwen2_audio(config.audio), "audio_token_index": config.tokens.audio}


def _decoder(raw: Raw, kind: str) -> DecoderConfig:
    _refuse(raw, kind)
    heads = int(raw["num_attention_heads"])
    attention_bias = bool(raw.get("attention_bias", False))
    moe = None
    if kind == "mixtral":
        moe = MoEConfig(
            experts=raw["num_local_experts"],
            top_k=raw["num_experts_per_tok"],
            ffn=raw["intermediate_size"],
            aux_loss=raw.get("router_aux_loss_coef", 0.001),
        )
    elif kind == "qwen3_moe":
        moe = MoEConfig(
            experts=raw.get("num_experts") or raw["num_local_experts"],
            top_k=raw["num_experts_per_tok"],
            ffn=raw["moe_intermediate_size"],
            norm_topk=raw.get("norm_topk_prob", False),
            aux_loss=raw.get("router_aux_loss_coef", 0.001),
            every=raw.get("decoder_sparse_step", 1),
            dense_layers=tuple(raw.get("mlp_only_layers") or ()),
        )
    theta, scaling = _rope(raw, kind)
    return DecoderConfig(
        hidden=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or (128 if kind.startswith("qwen3") else None),
        ffn=raw["intermediate_size"],
        max_seq=raw.get("max_position_embeddings", 2048),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        qkv_bias=kind == "qwen2" or attention_bias,
        out_bias=attention_bias and kind != "qwen2",
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=kind.startswith("qwen3"),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        moe=moe,
    )


def _refuse(raw: Raw, kind: str) -> None:
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise HuggingFaceError(f"hidden_act is {activation!r}; only silu is known here.")
    window = raw.get("sliding_window")
    if window is not None and (kind == "mixtral" or raw.get("use_sliding_window", False)):
        raise HuggingFaceError(f"sliding_window is {window}; attention here has no window, so it would differ.")


def _rope(raw: Raw, kind: str) -> tuple[float, RopeScalingConfig | None]:
    """Base and scaling, as newer files (rope_parameters) and older ones (rope_theta, rope_scaling) have them."""
    settings = {**(raw.get("rope_parameters") or raw.get("rope_scaling") or {})}
    theta = float(settings.pop("rope_theta", raw.get("rope_theta", _DEFAULT_THETA.get(kind, 10_000.0))))
    name = str(settings.get("rope_type", settings.get("type", "default")))
    if name == "default":
        return theta, None
    if name not in ("linear", "llama3", "yarn"):
        raise HuggingFaceError(f"rope_type is {name!r}; known are default, linear, llama3 and yarn.")
    values: dict[str, Any] = {
        "kind": name,
        "factor": settings["factor"],
        "original_max_seq": settings.get("original_max_position_embeddings")
        or raw.get("original_max_position_embeddings")
        or raw["max_position_embeddings"],
    }
    for key in ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"):
        if settings.get(key) is not None:
            values[key] = settings[key]
    known = {"rope_type", "type", "factor", "original_max_position_embeddings", "partial_rotary_factor", *values}
    strange = sorted(set(settings) - known)
    if strange or settings.get("partial_rotary_factor", 1.0) != 1.0:
        what = strange[0] if strange else "partial_rotary_factor"
        raise HuggingFaceError(f"rope setting {what}={settings[what]} has no counterpart here.")
    return theta, RopeScalingConfig(**values)


def _vision(raw: Raw, pixels: Raw) -> VisionConfig:
    tower = raw["vision_config"]
    model_type = str(tower.get("model_type", "clip_vision_model"))
    kinds = {"clip_vision_model": "clip", "siglip_vision_model": "siglip"}
    if model_type not in kinds:
        raise HuggingFaceError(f"vision_config.model_type is {model_type!r}; known are {', '.join(kinds)}.")
    layer = raw.get("vision_feature_layer", -2)
    layers = int(tower.get("num_hidden_layers", 12))
    if not isinstance(layer, int):
        raise HuggingFaceError(f"vision_feature_layer is {layer}; one layer is used here, several are not.")
    if raw.get("projector_hidden_act", "gelu") != "gelu" or not raw.get("multimodal_projector_bias", True):
        raise HuggingFaceError("multi_modal_projector is not two layers with biases and GELU between; none other here.")
    clip = kinds[model_type] == "clip"
    return VisionConfig(
        kind="clip" if clip else "siglip",
        image_size=tower.get("image_size", 224),
        channels=tower.get("num_channels", 3),
        patch=tower.get("patch_size", 32 if clip else 16),
        hidden=tower.get("hidden_size", 768),
        layers=layers,
        heads=tower.get("num_attention_heads", 12),
        ffn=tower.get("intermediate_size", 3072),
        activation=tower.get("hidden_act", "quick_gelu" if clip else "gelu_pytorch_tanh"),
        norm_eps=tower.get("layer_norm_eps", 1e-5 if clip else 1e-6),
        feature_layer=layer if layer < 0 else layer - layers - 1,
        select="full" if raw.get("vision_feature_select_strategy", "default") == "full" else "patch",
        projector="mlp",
        mean=tuple(pixels.get("image_mean", _CLIP_MEAN if clip else (0.5,))),
        std=tuple(pixels.get("image_std", _CLIP_STD if clip else (0.5,))),
    )


def _audio(tower: Raw) -> AudioConfig:
    if tower.get("activation_function", "gelu") != "gelu" or tower.get("scale_embedding", False):
        raise HuggingFaceError("audio_config has another activation than gelu, or scale_embedding; not known here.")
    positions = tower.get("max_source_positions", 1500)
    return AudioConfig(
        kind="whisper",
        sample_rate=16_000,
        n_fft=400,
        hop=160,
        max_s=2 * positions * 160 / 16_000,
        n_mels=tower.get("num_mel_bins", 128),
        hidden=tower.get("d_model", 1280),
        layers=tower.get("encoder_layers", 32),
        heads=tower.get("encoder_attention_heads", 20),
        ffn=tower.get("encoder_ffn_dim", 5120),
        max_positions=positions,
    )


def _ids(value: Any) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _tokens(raw: Raw, ends: list[int]) -> TokensConfig:
    """Ids of the config, and further ends. What a text model has no token for gets an id that never occurs."""
    vocab = int(raw.get("vocab_size", 0))
    return TokensConfig(
        pad=raw["pad_token_id"] if (raw.get("pad_token_id") or -1) >= 0 else 0,
        end=tuple(dict.fromkeys([*_ids(raw.get("eos_token_id")), *ends])),
        never=(),
        image=raw.get("image_token_index", raw.get("image_token_id", vocab)),
        audio=raw.get("audio_token_index", raw.get("audio_token_id", vocab + 1)),
        table=vocab + 2,
    )


def _text(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    decoder = config.decoder
    kind = _text_kind(decoder)
    rope: dict[str, Any] = {"rope_type": "default"}
    if decoder.rope_scaling is not None:
        fields = decoder.rope_scaling.model_dump(exclude_none=True)
        used = {
            "linear": ("factor",),
            "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
            "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor"),
        }[decoder.rope_scaling.kind]
        rope = {"rope_type": fields["kind"], **{key: fields[key] for key in used if key in fields}}
        if decoder.rope_scaling.kind != "linear":
            rope["original_max_position_embeddings"] = fields["original_max_seq"]
    raw: dict[str, Any] = {
        "architectures": [next(name for name, of in TEXT.items() if of == kind)],
        "model_type": kind,
        "vocab_size": vocab_size,
        "hidden_size": decoder.hidden,
        "intermediate_size": decoder.ffn,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.kv_heads,
        "head_dim": decoder.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": decoder.max_seq,
        "rms_norm_eps": decoder.norm_eps,
        "rope_theta": decoder.rope_theta,
        "rope_parameters": {**rope, "rope_theta": decoder.rope_theta},
        "tie_word_embeddings": decoder.tie_embeddings,
        "eos_token_id": config.tokens.end[0] if len(config.tokens.end) == 1 else list(config.tokens.end) or None,
        "pad_token_id": config.tokens.pad,
    }
    if kind in ("llama", "qwen3", "qwen3_moe"):
        raw["attention_bias"] = decoder.qkv_bias
    if kind == "llama":
        raw["mlp_bias"] = decoder.mlp_bias
    if decoder.moe is not None:
        raw["num_experts_per_tok"] = decoder.moe.top_k
        raw["router_aux_loss_coef"] = decoder.moe.aux_loss
        if kind == "mixtral":
            raw |= {"num_local_experts": decoder.moe.experts, "intermediate_size": decoder.moe.ffn}
        else:
            raw |= {
                "num_experts": decoder.moe.experts,
                "moe_intermediate_size": decoder.moe.ffn,
                "norm_topk_prob": decoder.moe.norm_topk,
                "decoder_sparse_step": decoder.moe.every,
                "mlp_only_layers": list(decoder.moe.dense_layers),
            }
    return raw


def _text_kind(decoder: DecoderConfig) -> str:
    """Which text architecture has exactly the decoder's parts."""
    biases = (decoder.qkv_bias, decoder.out_bias, decoder.mlp_bias)
    moe = decoder.moe
    if moe is not None:
        mixtral = not decoder.qk_norm and moe.norm_topk and moe.every == 1 and not moe.dense_layers
        if moe.capacity_factor is not None or any(biases) or not (mixtral or decoder.qk_norm):
            raise HuggingFaceError(
                "model.decoder.moe has a capacity, biases or an arrangement that neither Mixtral nor Qwen3-MoE has."
            )
        return "mixtral" if mixtral else "qwen3_moe"
    if decoder.qk_norm and biases in ((False, False, False), (True, True, False)):
        return "qwen3"
    if not decoder.qk_norm and biases == (True, False, False):
        return "qwen2"
    if not decoder.qk_norm and biases[0] == biases[1]:
        return "llama"
    raise HuggingFaceError(
        f"model.decoder has qkv_bias={biases[0]}, out_bias={biases[1]}, mlp_bias={biases[2]}, "
        f"qk_norm={decoder.qk_norm}; none of {', '.join(TEXT)} is like that."
    )


def _llava(vision: VisionConfig) -> dict[str, Any]:
    if vision.kind == "stem" or vision.projector != "mlp":
        raise HuggingFaceError(
            f"model.vision has kind={vision.kind} and projector={vision.projector}; LLaVA has clip or siglip, and mlp."
        )
    tower = {
        "model_type": f"{vision.kind}_vision_model",
        "image_size": vision.image_size,
        "patch_size": vision.patch,
        "num_channels": vision.channels,
        "hidden_size": vision.hidden,
        "intermediate_size": vision.ffn,
        "num_hidden_layers": vision.layers,
        "num_attention_heads": vision.heads,
        "hidden_act": vision.activation,
        "layer_norm_eps": vision.norm_eps,
    }
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "vision_config": tower,
        "vision_feature_layer": vision.feature_layer,
        "vision_feature_select_strategy": "default" if vision.select == "patch" and vision.kind == "clip" else "full",
        "projector_hidden_act": "gelu",
        "image_seq_length": vision.tokens,
    }


def _qwen2_audio(audio: AudioConfig) -> dict[str, Any]:
    if audio.kind != "whisper":
        raise HuggingFaceError(f"model.audio has kind={audio.kind}; Qwen2-Audio needs whisper.")
    return {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "model_type": "qwen2_audio",
        "audio_config": {
            "model_type": "qwen2_audio_encoder",
            "num_mel_bins": audio.n_mels,
            "d_model": audio.hidden,
            "encoder_layers": audio.layers,
            "encoder_attention_heads": audio.heads,
            "encoder_ffn_dim": audio.ffn,
            "max_source_positions": audio.max_positions,
        },
    }
