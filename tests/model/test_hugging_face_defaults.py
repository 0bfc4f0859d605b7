"""A config.json that states only what differs from the defaults is read as transformers' own classes read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2AudioConfig,
    Qwen2AudioEncoderConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SiglipVisionConfig,
)

from elasmo.model.batch import collate
from elasmo.model.encoded import Encoded
from elasmo.model.hugging_face import import_model
from elasmo.model.hugging_face_config import TEXT as ARCHITECTURES
from elasmo.model.hugging_face_config import from_hugging_face
from elasmo.model.hugging_face_defaults import (
    DEFAULTS,
    ENDS,
    FEATURE_LAYER,
    LLAVA_VISION,
    HuggingFaceError,
    completed,
)
from tests.model.test_hugging_face import TEXT, change, loaded, saved, their_logits

THEIRS: dict[str, type[PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "mixtral": MixtralConfig,
    "qwen3_moe": Qwen3MoeConfig,
    "clip_vision_model": CLIPVisionConfig,
    "siglip_vision_model": SiglipVisionConfig,
    "qwen2_audio_encoder": Qwen2AudioEncoderConfig,
    "llava": LlavaConfig,
    "qwen2_audio": Qwen2AudioConfig,
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_are_those_of_the_installed_transformers(kind: str) -> None:
    theirs = THEIRS[kind]()
    assert theirs.model_type == kind and set(THEIRS) == set(DEFAULTS)
    for key, ours in DEFAULTS[kind].items():
        if key == "rope_theta":
            assert theirs.rope_parameters["rope_theta"] == ours
        elif key == "sliding_window":  # theirs is null while it is not in use
            assert getattr(theirs, "use_sliding_window", False) is False and theirs.sliding_window is None
        elif key == "head_dim":
            assert (getattr(theirs, "head_dim", None) or 0) in (ours or 0, theirs.hidden_size // 32)
        elif key == "num_key_value_heads":
            assert theirs.num_key_value_heads == (ours or theirs.num_attention_heads)
        else:
            assert getattr(theirs, key) == ours, key
    assert getattr(theirs, "eos_token_id", None) == ENDS.get(kind)


def test_llava_has_a_vision_tower_and_layer_of_its_own() -> None:
    theirs = LlavaConfig()
    assert theirs.vision_feature_layer == FEATURE_LAYER
    assert {key: getattr(theirs.vision_config, key) for key in LLAVA_VISION} == LLAVA_VISION
    assert theirs.text_config.model_type == "llama" and Qwen2AudioConfig().text_config.model_type == "qwen2"


@pytest.mark.parametrize(("architecture", "kind"), ARCHITECTURES.items())
def test_an_empty_config_is_the_whole_default_model(architecture: str, kind: str) -> None:
    config, vocab_size = from_hugging_face({"architectures": [architecture], "model_type": kind})
    theirs, ours = THEIRS[kind](), config.decoder
    assert vocab_size == theirs.vocab_size and ours.hidden == theirs.hidden_size and ours.heads == 32
    assert (ours.layers, ours.kv_heads) == (theirs.num_hidden_layers, theirs.num_key_value_heads)
    assert ours.head_size == (getattr(theirs, "head_dim", None) or theirs.hidden_size // 32)
    assert (ours.max_seq, ours.norm_eps) == (theirs.max_position_embeddings, theirs.rms_norm_eps)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"] and not ours.tie_embeddings
    assert config.tokens.end == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
    if ours.moe is not None:
        experts = getattr(theirs, "num_local_experts", None) or theirs.num_experts
        assert (ours.moe.experts, ours.moe.top_k) == (experts, theirs.num_experts_per_tok)


def test_the_published_llava_1_5_config_is_vicuna_7b_with_clip_large() -> None:
    """As llava-hf/llava-1.5-7b-hf has it: the language model's sizes are all left out."""
    text = {
        "_name_or_path": "lmsys/vicuna-7b-v1.5",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "rms_norm_eps": 1e-05,
        "torch_dtype": "float16",
        "vocab_size": 32064,
    }
    tower = {
        "hidden_size": 1024,
        "image_size": 336,
        "intermediate_size": 4096,
        "model_type": "clip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
        "projection_dim": 768,
        "vocab_size": 32000,
    }
    raw = {
        "architectures": ["LlavaForConditionalGeneration"],
        "ignore_index": -100,
        "image_token_index": 32000,
        "model_type": "llava",
        "pad_token_id": 32001,
        "projector_hidden_act": "gelu",
        "text_config": text,
        "tie_word_embeddings": False,
        "vision_config": tower,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "vocab_size": 32064,
    }
    config, vocab_size = from_hugging_face(raw)
    decoder, vision = config.decoder, config.vision
    assert vocab_size == 32064 and (decoder.hidden, decoder.ffn, decoder.layers) == (4096, 11008, 32)
    assert (decoder.heads, decoder.kv_heads, decoder.head_size, decoder.max_seq) == (32, 32, 128, 4096)
    assert vision is not None and (vision.tokens, vision.activation) == (576, "quick_gelu")
    assert (config.tokens.image, config.tokens.pad, config.tokens.end) == (32000, 32001, (2,))
    assert from_hugging_face({**raw, "vision_config": None})[0].vision == vision


def test_the_published_qwen2_audio_config_is_qwen_7b_with_whisper_large() -> None:
    """As Qwen/Qwen2-Audio-7B has it: hidden size, layers and heads are left out."""
    text = {
        "bos_token_id": 151643,
        "eos_token_id": 151643,
        "intermediate_size": 11008,
        "max_position_embeddings": 8192,
        "model_type": "qwen2",
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "sliding_window": 32768,
        "use_mrope": False,
        "vocab_size": 156032,
    }
    raw = {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "audio_config": {"model_type": "qwen2_audio_encoder", "num_mel_bins": 128},
        "audio_token_index": 151646,
        "model_type": "qwen2_audio",
        "text_config": text,
        "vocab_size": 156032,
    }
    config, vocab_size = from_hugging_face(raw)
    decoder, audio = config.decoder, config.audio
    assert vocab_size == 156032 and (decoder.hidden, decoder.ffn, decoder.layers, decoder.heads) == (
        4096,
        11008,
        32,
        32,
    )
    assert audio is not None and (audio.hidden, audio.layers, audio.heads, audio.ffn) == (1280, 32, 20, 5120)
    assert (config.tokens.audio, config.tokens.end) == (151646, (151643,))


SMALL = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 101}


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llava", "qwen2_audio"])
def test_a_sparse_config_imports_and_gives_the_same_logits(tmp_path: Path, kind: str) -> None:
    """Heads, activations, epsilons, rotary base and the towers' own settings are left to the defaults."""
    vision = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 64, "patch_size": 16}
    audio = {"d_model": 20, "encoder_layers": 2, "encoder_ffn_dim": 40, "encoder_attention_heads": 4}
    raw: dict[str, Any] = {"model_type": kind, "text_config": dict(SMALL), "image_token_index": 100}
    raw |= {"vision_config": vision} if kind == "llava" else {"audio_config": audio, "audio_token_index": 100}
    given = json.loads(json.dumps(raw))
    theirs: Any
    if kind == "llava":
        theirs = LlavaForConditionalGeneration(LlavaConfig(**given))
    else:
        theirs = Qwen2AudioForConditionalGeneration(Qwen2AudioConfig(**given))
    saved(theirs, tmp_path / "hf")
    raw["architectures"] = json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"]
    (tmp_path / "hf" / "config.json").write_text(json.dumps(raw))
    import_model(tmp_path / "hf", tmp_path / "ours")
    sample = Encoded.of_tokens(np.arange(3, 30, dtype=np.int32), np.zeros(27, np.uint8))
    wanted = their_logits(theirs, sample)
    torch.testing.assert_close(loaded(tmp_path / "ours")(collate([sample]))[0], wanted, rtol=1e-4, atol=1e-4)


def test_names_of_older_and_newer_files_mean_the_same() -> None:
    assert completed({"num_local_experts": 4}, "qwen3_moe")["num_experts"] == 4
    assert completed({"num_experts": 4}, "mixtral")["num_local_experts"] == 4
    assert completed({"image_token_id": 7}, "llava")["image_token_index"] == 7
    assert completed({"hidden_size": 40}, "qwen2_audio_encoder")["d_model"] == 40


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_attention_heads": "abc"}, "num_attention_heads is 'abc'; it must be a whole number from 1"),
        ({"num_attention_heads": 4.5}, "num_attention_heads is 4.5; it must be a whole number"),
        ({"num_attention_heads": True}, "num_attention_heads is True; it must be a whole number"),
        ({"num_attention_heads": None}, "num_attention_heads is None; it must be a whole number"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000; it must be a whole number from 1 to 1000"),
        ({"vocab_size": "x"}, "vocab_size is 'x'; it must be a whole number"),
        ({"head_dim": 0}, "head_dim is 0; it must be a whole number"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0; it must be a whole number"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1; it must be a number, at least 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; it must be true or false"),
        ({"rope_parameters": {"rope_theta": "abc"}}, "rope_theta is 'abc'; it must be a number above 0"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_theta is 0; it must be a number above 0"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; it must be a section"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type linear: factor is None; it must be a number above 0"),
        ({"eos_token_id": "a"}, "eos_token_id is 'a'; it must be a token id"),
        ({"architectures": 3}, "Architecture 3 is unknown"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantization_config is set \(quant_method gptq\)"),
    ],
)
def test_a_value_that_no_model_can_have_is_named(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    change(tmp_path / "hf", **changes)
    with pytest.raises(HuggingFaceError, match=sentence):
        import_model(tmp_path / "hf", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("changes", "pixels", "sentence"),
    [
        ({"text_config": "x"}, {}, "text_config is 'x'; it must be a section of settings"),
        ({"vision_config": [1]}, {}, r"vision_config is \[1\]; it must be a section of settings"),
        (
            {"text_config": {"quantization_config": {"quant_method": "awq"}}},
            {},
            "text_config.quantization_config is set",
        ),
        ({"vision_feature_layer": True}, {}, "vision_feature_layer is True; one layer is used here"),
        ({"vision_feature_layer": 99}, {}, "vision_feature_layer is 99; a tower of 24 layers has -25 to 24"),
        ({"vision_feature_select_strategy": "cls"}, {}, "vision_feature_select_strategy is 'cls'; known are default"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, {}, "strategy is 'default', which drops an image's"),
        ({}, {"image_std": [0, 0, 0]}, r"image_std is \[0, 0, 0\]; it must be one number above 0 a channel"),
        ({}, {"do_rescale": False}, "The image processor leaves pixels in another range than 0..1"),
        ({}, {"image_mean": None}, "image_mean is None; it must be one number a channel"),
    ],
)
def test_a_section_that_no_llava_can_have_is_named(
    changes: dict[str, Any], pixels: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(HuggingFaceError, match=sentence):
        from_hugging_face({"architectures": ["LlavaForConditionalGeneration"], **changes}, pixels)


def test_pixels_that_are_not_normalised_stay_in_0_to_1() -> None:
    config, _ = from_hugging_face({"architectures": ["LlavaForConditionalGeneration"]}, {"do_normalize": False})
    assert config.vision is not None and (config.vision.mean, config.vision.std) == ((0.0,), (1.0,))


def test_an_image_processor_that_is_none_is_named(tmp_path: Path) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    (tmp_path / "hf" / "processor_config.json").write_text('{"image_processor": 3}')
    with pytest.raises(HuggingFaceError, match=r"processor_config\.json: image_processor is 3; it must be a section"):
        import_model(tmp_path / "hf", tmp_path / "ours")
    (tmp_path / "hf" / "processor_config.json").write_text('{"image_processor": {"size": "big"}}')
    with pytest.raises(HuggingFaceError, match="size is 'big'; it must be pixels"):
        import_model(tmp_path / "hf", tmp_path / "ours")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.int8, "I8"),
        (torch.bool, "BOOL"),
        (torch.float8_e4m3fn, "F8_E4M3"),
        (torch.complex64, "C64"),
    ],
)
def test_weights_that_are_no_floats_are_refused_by_name(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(32).to(dtype)
    save_file(weights, tmp_path / "hf" / "model.safetensors")
    with pytest.raises(HuggingFaceError, match=f"'model.norm.weight' is {name}; weights must be F64, F32, F16, BF16"):
        import_model(tmp_path / "hf", tmp_path / "ours")
