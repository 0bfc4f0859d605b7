from __future__ import annotations

import pytest
import torch

from elasmo.config import DecoderConfig, ModelConfig, MoEConfig, TableConfig, VisionConfig
from elasmo.config.model import AudioConfig, CrossAttentionConfig
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.simulate.describe import from_config, from_hugging_face, from_shape, known_model
from elasmo.simulate.model import Model, ModelError

PUBLISHED_B = {
    "Llama-2-7B": 6.738, "Llama-2-13B": 13.016, "Llama-2-70B": 68.977, "Llama-3-8B": 8.030, "Llama-3-70B": 70.554,
    "Llama-3.1-405B": 405.85, "Mixtral-8x7B": 46.703, "Mixtral-8x22B": 140.63, "DeepSeek-V3-671B": 671.03,
    "Qwen3-30B-A3B": 30.53, "Qwen3-235B-A22B": 235.09, "GPT-OSS-120B": 116.83, "Llama-4-Maverick": 400.7,
    "Qwen3-32B": 32.76, "MPT-70b": 64.86, "MPT-7b": 6.65, "MT-NLG-530B": 530.0, "LLaMA-65B": 65.29,
}  # fmt: skip
"""Billions of parameters, from model cards and papers; MPT's from llm-foundry's table of runs."""
ACTIVE_B = {"Mixtral-8x7B": 12.88, "DeepSeek-V3-671B": 37.55, "Qwen3-30B-A3B": 3.35, "Qwen3-235B-A22B": 22.19}


@pytest.mark.parametrize("name", PUBLISHED_B)
def test_parameters_are_the_published_ones(name: str) -> None:
    assert known_model(name).parameters / 1e9 == pytest.approx(PUBLISHED_B[name], rel=0.003)


@pytest.mark.parametrize("name", ACTIVE_B)
def test_active_parameters_count_the_experts_of_a_token(name: str) -> None:
    assert known_model(name).active_parameters / 1e9 == pytest.approx(ACTIVE_B[name], rel=0.005)


def built(config: ModelConfig, vocab: int) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in MultimodalDecoder(config, vocab).parameters())


TEXT: dict[str, None] = {"vision": None, "audio": None, "table": None}


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(**TEXT),
        ModelConfig(decoder=DecoderConfig(tie_embeddings=False, qk_norm=True), **TEXT),
        ModelConfig(decoder=DecoderConfig(qkv_bias=True, out_bias=True, mlp_bias=True, head_dim=64), **TEXT),
        ModelConfig(decoder=DecoderConfig(layers=4, moe=MoEConfig(experts=4, every=2)), **TEXT),
        ModelConfig(decoder=DecoderConfig(layers=3, moe=MoEConfig(experts=4, dense_layers=(0,))), **TEXT),
        ModelConfig(audio=None, table=None),
        ModelConfig(vision=None, table=None),
        ModelConfig(vision=None, table=None, audio=AudioConfig(kind="whisper", hop=256, max_s=2.0)),
        ModelConfig(vision=VisionConfig(kind="clip", projector="mlp", layers=3), audio=None, table=None),
        ModelConfig(vision=VisionConfig(kind="siglip", projector="linear", layers=3), audio=None, table=None),
        ModelConfig(
            audio=None, table=None, fusion="cross_attention", decoder=DecoderConfig(layers=4),
            cross_attention=CrossAttentionConfig(latents=8, every=2, ffn=96),
        ),
        ModelConfig(table=None, fusion="cross_attention", decoder=DecoderConfig(layers=3)),
    ],
    ids=lambda config: config.fusion,
)  # fmt: skip
def test_parameters_are_those_of_the_model_that_the_config_builds(config: ModelConfig) -> None:
    assert from_config(config, 1000).parameters == built(config, 1000)


def test_a_table_tower_is_counted_to_its_embeddings() -> None:
    tower = from_config(ModelConfig(table=TableConfig(), vision=None, audio=None), 1000).towers[0]
    assert tower.kind == "table" and tower.parameters > 4096 * 64


def test_frozen_parts_are_not_trained() -> None:
    whole = from_config(ModelConfig(table=None, audio=None), 1000)
    frozen = from_config(ModelConfig(table=None, audio=None), 1000, frozen=("vision", "decoder"))
    assert whole.trained_parameters == whole.parameters
    assert frozen.trained_parameters == frozen.towers[0].projector_parameters


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_hugging_face_config_is_read() -> None:
    assert from_hugging_face(LLAMA).parameters / 1e9 == pytest.approx(8.030, rel=1e-3)


def test_a_llava_config_has_its_tower_and_576_tokens_an_image() -> None:
    llava = from_hugging_face(
        {
            "text_config": {**LLAMA, "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32064},
            "vision_config": {
                "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "patch_size": 14,
                "image_size": 336, "num_hidden_layers": 24, "num_attention_heads": 16,
            },
            "vision_feature_layer": -2,
        }
    )  # fmt: skip
    tower = llava.towers[0]
    assert (tower.tokens, tower.positions, tower.layers) == (576, 577, 23)
    assert llava.parameters / 1e9 == pytest.approx(7.06, rel=0.01)


def test_deepseek_is_read_with_latent_attention_and_shared_experts() -> None:
    raw = {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "tie_word_embeddings": False,
    }  # fmt: skip
    model = from_hugging_face(raw)
    assert model.parameters == known_model("DeepSeek-V3-671B").parameters
    assert model.kv_bytes_per_token() == 2 * 61 * (512 + 64)


def test_a_rows_parameters_settle_what_its_columns_leave_open() -> None:
    row = {"layers": "32", "hidden": "4096", "heads": "64", "ffn": "28672", "vocab": "32000", "n_params_b": "15.9"}
    assert from_shape(row).layers[0].attention.head_dim == 128
    assert from_shape({**row, "n_params_b": ""}).layers[0].attention.head_dim == 64


def test_a_row_without_a_shape_is_refused() -> None:
    with pytest.raises(ModelError, match="hidden is blank"):
        from_shape({"layers": "2", "vocab": "10"})
    with pytest.raises(ModelError, match="kv_heads=3 must divide heads=4"):
        from_shape({"layers": "2", "hidden": "8", "heads": "4", "kv_heads": "3", "vocab": "10"})


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ModelError, match="model=GPT-9 is not among the published shapes"):
        known_model("GPT-9")


def test_a_window_bounds_the_layers_that_have_it() -> None:
    model: Model = known_model("GPT-OSS-120B")
    assert [layer.attention.window for layer in model.layers[:2]] == [128, None]


def test_many_experts_are_not_as_wide_as_the_dense_layers_that_a_row_states() -> None:
    """A row with DeepSeek-V3's dense width and no width of experts: 671 B parameters, not 4.6 T."""
    row = {"layers": "61", "hidden": "7168", "heads": "128", "ffn": "18432", "experts": "256", "topk": "8",
           "vocab": "129280"}  # fmt: skip
    assert from_shape(row).parameters / 1e9 == pytest.approx(671, rel=0.06)
