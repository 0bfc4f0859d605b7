"""Writes our model config as a Hugging Face `config.json`, and refuses by name what transformers has nothing for."""

from __future__ import annotations

from typing import Any

from elasmo.config import AudioConfig, DecoderConfig, ModelConfig, VisionConfig
from elasmo.model.hugging_face_config import TEXT
from elasmo.model.hugging_face_defaults import HuggingFaceError


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
        attention_only = biases == (False, False, False) or (biases == (True, True, False) and decoder.qk_norm)
        if moe.capacity_factor is not None or not attention_only or not (mixtral or decoder.qk_norm):
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
