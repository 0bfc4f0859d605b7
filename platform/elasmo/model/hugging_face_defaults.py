"""What transformers' config classes take where a `config.json` is silent, and the types that they insist on.

Published files often state only what differs from these values. They are written down here, because importing a model
must not need transformers; a test compares them with the classes of the installed version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Raw = Mapping[str, Any]


class HuggingFaceError(ValueError):
    """A Hugging Face model that cannot be imported, or a model of ours that cannot be exported, with the reason."""


_DECODER: Raw = {
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "num_attention_heads": 32,
    "head_dim": None,
}
_QWEN: Raw = {
    **_DECODER,
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "use_sliding_window": False,
    "sliding_window": 4096,
}
_TOWER: Raw = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
}
DEFAULTS: Mapping[str, Raw] = {
    "llama": {
        **_DECODER,
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_key_value_heads": None,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128, "attention_bias": False},
    "mixtral": {
        **_DECODER,
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "router_aux_loss_coef": 0.001,
    },
    "qwen3_moe": {
        **_QWEN,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
        "norm_topk_prob": False,
        "router_aux_loss_coef": 0.001,
    },
    "clip_vision_model": {**_TOWER, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    "siglip_vision_model": {**_TOWER, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    "qwen2_audio_encoder": {
        "num_mel_bins": 128,
        "encoder_layers": 32,
        "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "d_model": 1280,
        "activation_function": "gelu",
        "scale_embedding": False,
        "max_source_positions": 1500,
    },
    "llava": {
        "image_token_index": 32_000,
        "projector_hidden_act": "gelu",
        "vision_feature_select_strategy": "default",
        "multimodal_projector_bias": True,
        "tie_word_embeddings": False,
    },
    "qwen2_audio": {"audio_token_index": 151_646},
}
"""By `model_type`. A value of None is a whole number that is worked out from others when null."""
FEATURE_LAYER = -2
"""LLaVA's `vision_feature_layer`, which may be negative or a list."""
LLAVA_VISION: Raw = {
    "model_type": "clip_vision_model",
    "intermediate_size": 4096,
    "hidden_size": 1024,
    "patch_size": 14,
    "image_size": 336,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
"""LLaVA's `vision_config` when there is none; one that is there has the defaults of its `model_type`."""
ENDS: Mapping[str, int] = {"llama": 2, "mixtral": 2}
"""`eos_token_id`, of those that have one."""

_ALIASES: Mapping[str, Mapping[str, str]] = {
    "mixtral": {"num_experts": "num_local_experts"},
    "qwen3_moe": {"num_local_experts": "num_experts"},
    "qwen2_audio_encoder": {
        "num_hidden_layers": "encoder_layers",
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "intermediate_size": "encoder_ffn_dim",
    },
    "llava": {"image_token_id": "image_token_index"},
    "qwen2_audio": {"audio_token_id": "audio_token_index"},
}
_NULLABLE = {("qwen2", "num_key_value_heads"), ("qwen3", "num_key_value_heads")}
_UNREAD_NULL = {"sliding_window"}
_MOST: Mapping[str, int] = {
    "num_hidden_layers": 1000,
    "encoder_layers": 1000,
    "num_experts": 10_000,
    "num_local_experts": 10_000,
    "max_source_positions": 1_000_000,
}
"""Counts above which a file is damaged rather than of a large model."""


def completed(raw: Raw, kind: str, where: str = "") -> dict[str, Any]:
    """A section of a `config.json` with the defaults of its `model_type` filled in and every value's type checked.

    Args:
        where: prefix of the section's keys in errors, such as `text_config.`.

    Raises:
        HuggingFaceError: names a value of another type than transformers takes, or one that no model can have.
    """
    section = dict(raw)
    for alias, key in _ALIASES.get(kind, {}).items():
        if alias in section and key not in section:
            section[key] = section[alias]
    for key, default in DEFAULTS[kind].items():
        value = section.setdefault(key, default)
        if value is None and (default is None or key in _UNREAD_NULL or (kind, key) in _NULLABLE):
            continue
        _check(f"{where}{key}", value, default, _MOST.get(key, 2**31 - 1))
    return section


def _check(key: str, value: Any, default: Any, most: int) -> None:
    if isinstance(default, bool):
        fits, wanted = isinstance(value, bool), "true or false"
    elif isinstance(default, str):
        fits, wanted = isinstance(value, str), f"a name such as {default}"
    elif isinstance(default, float):
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        fits = number and (value > 0 if key.endswith("rope_theta") else value >= 0)
        wanted = "a number above 0" if key.endswith("rope_theta") else "a number, at least 0"
    else:
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most
        wanted = f"a whole number from 1 to {most}"
    if not fits:
        raise HuggingFaceError(f"config.json: {key} is {value!r}; it must be {wanted}.")
