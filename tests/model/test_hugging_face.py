"""Models of transformers with random weights give the same logits here, and the same again after an export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2AudioConfig,
    Qwen2AudioEncoderConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SiglipVisionConfig,
)

from elasmo.config import ServeConfig
from elasmo.model import published
from elasmo.model.batch import collate, pack
from elasmo.model.encoded import Encoded
from elasmo.model.hugging_face import export_model, import_model
from elasmo.model.hugging_face_defaults import HuggingFaceError
from elasmo.model.mel import BORDER, whisper_tokens
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.published import PublishedError
from elasmo.serve.served_model import read_served_model

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16}
TEXT = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "llama-tied-biased": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3)
    ),
    "llama-wide-heads": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, head_dim=12)),
    "llama-llama3-rope": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=LLAMA3)),
    "llama-linear-rope": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0})
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen2-yarn": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, rope_parameters=YARN)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3-moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **SHAPE,
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=20,
            norm_topk_prob=True,
            mlp_only_layers=[0],
        )
    ),
    "qwen3-moe-biased": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **SHAPE,
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=20,
            attention_bias=True,
            norm_topk_prob=True,
        )
    ),
    "qwen3-moe-plain-weights": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SHAPE, head_dim=16, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20)
    ),
}


def saved(model: PreTrainedModel, folder: Path, **options: Any) -> PreTrainedModel:
    """The model with random weights everywhere, norms and biases too, saved with a tokenizer's files beside it."""
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.3).to(parameter.dtype)
    model.eval().save_pretrained(folder, **options)
    Tokenizer(WordLevel({"zero": 0, "one": 1}, "zero")).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return model


def loaded(out: Path) -> MultimodalDecoder:
    return published.load(out).model


def text(*lengths: int) -> list[Encoded]:
    random = np.random.default_rng(4)
    return [
        Encoded.of_tokens(random.integers(3, 99, length).astype(np.int32), np.zeros(length, np.uint8))
        for length in lengths
    ]


def their_logits(model: PreTrainedModel, sample: Encoded, **inputs: Tensor) -> Tensor:
    ids = torch.from_numpy(sample.tokens.astype(np.int64))[None]
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0]


@torch.no_grad()
@pytest.mark.parametrize("kind", TEXT)
def test_text_logits_alone_padded_packed_and_after_an_export(tmp_path: Path, kind: str) -> None:
    theirs = saved(TEXT[kind](), tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    ours = loaded(tmp_path / "ours")
    samples = text(40, 7, 23)
    wanted = [their_logits(theirs, sample) for sample in samples]
    padded, packed = ours(collate(samples)), ours(pack(samples, multiple=16))[0].split([40, 7, 23, 10])
    for row, logits in enumerate(wanted):
        torch.testing.assert_close(ours(collate([samples[row]]))[0], logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(padded[row, : len(logits)], logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(packed[row], logits, rtol=1e-4, atol=1e-4)
    export_model(tmp_path / "ours", tmp_path / "back")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32).eval()
    assert torch.equal(their_logits(again, samples[0]), wanted[0])


@torch.no_grad()
@pytest.mark.parametrize(
    "kind", ["llama-llama3-rope", "qwen2-yarn", "qwen3", "mixtral", "qwen3-moe", "qwen3-moe-biased"]
)
def test_a_model_of_ours_gets_a_config_that_transformers_reads_the_same(tmp_path: Path, kind: str) -> None:
    """Without the imported config.json to fall back on, as for a model that was trained here."""
    theirs = saved(TEXT[kind](), tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    manifest = json.loads((tmp_path / "ours" / "manifest.json").read_text())
    manifest["kept"] = [file for file in manifest["kept"] if file["name"] != "config.json"]
    (tmp_path / "ours" / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "ours" / "hugging_face" / "config.json").unlink()
    export_model(tmp_path / "ours", tmp_path / "back")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32).eval()
    (sample,) = text(30)
    torch.testing.assert_close(their_logits(again, sample), their_logits(theirs, sample), rtol=1e-5, atol=1e-5)


def test_older_config_files_mean_the_same(tmp_path: Path) -> None:
    saved(TEXT["llama-llama3-rope"](), tmp_path / "hf")
    raw = json.loads((tmp_path / "hf" / "config.json").read_text())
    import_model(tmp_path / "hf", tmp_path / "new")
    scaling = raw.pop("rope_parameters")
    raw["rope_theta"] = scaling.pop("rope_theta")
    raw["rope_scaling"] = scaling
    (tmp_path / "hf" / "config.json").write_text(json.dumps(raw))
    import_model(tmp_path / "hf", tmp_path / "old")
    assert loaded(tmp_path / "old").config == loaded(tmp_path / "new").config


def llava(vision: Any, **options: Any) -> LlavaForConditionalGeneration:
    return LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=LlamaConfig(**SHAPE), image_token_index=100, **options)
    )


TOWER: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
QWEN2_AUDIO = Qwen2AudioEncoderConfig(
    d_model=24,
    encoder_layers=2,
    encoder_attention_heads=4,
    encoder_ffn_dim=40,
    num_mel_bins=16,
    max_source_positions=20,
)
LLAVA = {
    "clip": lambda: llava(CLIPVisionConfig(**TOWER)),
    "clip-embeddings": lambda: llava(CLIPVisionConfig(**TOWER), vision_feature_layer=0),
    "clip-one-listed": lambda: llava(CLIPVisionConfig(**TOWER), vision_feature_layer=[-3]),
    "siglip": lambda: llava(
        SiglipVisionConfig(**TOWER), vision_feature_select_strategy="full", vision_feature_layer=-1
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", LLAVA)
def test_llava_with_none_one_and_two_images_padded_and_packed(tmp_path: Path, kind: str) -> None:
    theirs = saved(LLAVA[kind](), tmp_path / "hf")
    mean, std = [0.4, 0.5, 0.6], [0.3, 0.2, 0.25]
    (tmp_path / "hf" / "preprocessor_config.json").write_text(json.dumps({"image_mean": mean, "image_std": std}))
    import_model(tmp_path / "hf", tmp_path / "ours")
    ours = loaded(tmp_path / "ours")
    random = np.random.default_rng(1)
    samples, wanted = [], []
    for images in (1, 2, 0):
        pixels = random.integers(0, 256, (images, 16, 16, 3)).astype(np.uint8)
        tokens = list(random.integers(3, 99, 4))
        for _ in range(images):
            tokens += [100] * 16 + list(random.integers(3, 99, 3))
        bare = Encoded.of_tokens(np.array(tokens, np.int32), np.zeros(len(tokens), np.uint8))
        sample = Encoded(**{**vars(bare), "images": pixels} if images else vars(bare))
        values = (torch.from_numpy(pixels).double() / 255 - torch.tensor(mean)) / torch.tensor(std)
        given = {"pixel_values": values.permute(0, 3, 1, 2).float()} if images else {}
        samples.append(sample)
        wanted.append(their_logits(theirs, sample, **given))
    padded = ours(collate(samples))
    packed = ours(pack(samples))[0].split([len(sample.tokens) for sample in samples])
    for row, logits in enumerate(wanted):
        torch.testing.assert_close(padded[row, : len(logits)], logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(packed[row], logits, rtol=1e-4, atol=1e-4)
    export_model(tmp_path / "ours", tmp_path / "back")
    again = LlavaForConditionalGeneration.from_pretrained(tmp_path / "back", dtype=torch.float32).eval()
    values = (torch.from_numpy(samples[0].images).double() / 255 - torch.tensor(mean)) / torch.tensor(std)
    pixel_values = values.permute(0, 3, 1, 2).float()
    torch.testing.assert_close(their_logits(again, samples[0], pixel_values=pixel_values), wanted[0])
    for name, tensor in again.state_dict().items():  # also what our model leaves out
        assert torch.equal(tensor, theirs.state_dict()[name]), name


@torch.no_grad()
def test_qwen2_audio_with_clips_of_several_lengths(tmp_path: Path) -> None:
    config = Qwen2AudioConfig(audio_config=QWEN2_AUDIO, text_config=Qwen2Config(**SHAPE), audio_token_index=100)
    theirs = saved(Qwen2AudioForConditionalGeneration(config), tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    ours = loaded(tmp_path / "ours")
    random = np.random.default_rng(2)
    samples, wanted = [], []
    for lengths in ((40,), (11, 26), (9, 3, 18)):
        clips = tuple(random.normal(size=(length + BORDER, 16)).astype(np.float16) for length in lengths)
        tokens = list(random.integers(3, 99, 2))
        for length in lengths:
            tokens += [100] * whisper_tokens(length) + list(random.integers(3, 99, 3))
        bare = Encoded.of_tokens(np.array(tokens, np.int32), np.zeros(len(tokens), np.uint8))
        sample = Encoded(**{**vars(bare), "audio": clips})
        features = torch.zeros(len(clips), 40, 16)
        inside = torch.zeros(len(clips), 40, dtype=torch.int64)
        for row, (clip, length) in enumerate(zip(clips, lengths, strict=True)):
            features[row, : len(clip)] = torch.from_numpy(clip.astype(np.float32))[:40]
            inside[row, :length] = 1
        given = {"input_features": features.transpose(1, 2), "feature_attention_mask": inside}
        samples.append(sample)
        wanted.append(their_logits(theirs, sample, **given))
    padded = ours(collate(samples))
    packed = ours(pack(samples))[0].split([len(sample.tokens) for sample in samples])
    for row, logits in enumerate(wanted):
        torch.testing.assert_close(padded[row, : len(logits)], logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(packed[row], logits, rtol=1e-4, atol=1e-4)
    export_model(tmp_path / "ours", tmp_path / "back")
    again = Qwen2AudioForConditionalGeneration.from_pretrained(tmp_path / "back", dtype=torch.float32)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name]), name


def test_sharded_bfloat16_weights_and_kept_files_come_back_bit_for_bit(tmp_path: Path) -> None:
    saved(TEXT["mixtral"]().to(torch.bfloat16), tmp_path / "hf", max_shard_size="20KB")
    theirs = {}
    for path in sorted((tmp_path / "hf").glob("*.safetensors")):
        theirs.update(load_file(path))
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 2
    done = import_model(tmp_path / "hf", tmp_path / "ours", "small")
    assert {"chat_template.jinja", "config.json", "tokenizer.json"} <= set(done.kept)
    files = export_model(tmp_path / "ours", tmp_path / "back", shard_bytes=30_000)
    assert len(files) > 2 and all(path.stat().st_size < 40_000 for path in files)
    ours = {}
    for path in files:
        with safe_open(str(path), framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
        ours.update(load_file(path))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].dtype == torch.bfloat16 and torch.equal(ours[name], theirs[name]) for name in theirs)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "hf" / name).read_bytes()


def change(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **changes}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "Architecture GPT2LMHeadModel is unknown here; known are LlamaFor"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; only silu"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'; known are default"),
        ({"num_key_value_heads": 3}, "kv_heads=3 must divide heads=4"),
        ({"num_hidden_layers": 3}, "lacks tensor 'model.layers.2.input_layernorm.weight'"),
        ({"num_hidden_layers": 1}, "holds tensor 'model.layers.1.input_layernorm.weight'"),
        ({"intermediate_size": 40}, r"has shape \(48, 32\), the config says \(40, 32\)"),
        ({"hidden_size": None}, "config.json"),
    ],
)
def test_what_cannot_be_imported_is_named(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    change(tmp_path / "hf", **changes)
    with pytest.raises(HuggingFaceError, match=sentence):
        import_model(tmp_path / "hf", tmp_path / "ours")


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "llava", "qwen2_audio"])
@pytest.mark.parametrize("head", ["absent", "equal", "other"])
def test_an_output_matrix_of_its_own_counts_whatever_the_config_says(tmp_path: Path, kind: str, head: str) -> None:
    """LLaVA may say so in its outer section alone. Qwen2-Audio is never tied in transformers, so it always has one."""
    tied = {**SHAPE, "tie_word_embeddings": True}
    theirs: PreTrainedModel
    if kind == "llama":
        theirs = LlamaForCausalLM(LlamaConfig(**tied))
    elif kind == "llava":
        theirs = llava(CLIPVisionConfig(**TOWER), tie_word_embeddings=True)
    else:
        config = Qwen2AudioConfig(audio_config=QWEN2_AUDIO, text_config=Qwen2Config(**tied), audio_token_index=100)
        theirs = Qwen2AudioForConditionalGeneration(config)
    saved(theirs, tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    weights = load_file(path)
    prefix = "" if kind == "llama" else "language_model."
    embedding = next(value for name, value in weights.items() if name.endswith("embed_tokens.weight"))
    weights.pop(f"{prefix}lm_head.weight", None)
    if head == "equal":
        weights[f"{prefix}lm_head.weight"] = embedding.clone()
    if head == "other":
        weights[f"{prefix}lm_head.weight"] = embedding.flip(0).contiguous()
    save_file(weights, path, metadata={"format": "pt"})
    import_model(tmp_path / "hf", tmp_path / "ours")
    ours = loaded(tmp_path / "ours")
    assert ours.config.decoder.tie_embeddings == (head != "other")
    export_model(tmp_path / "ours", tmp_path / "back")
    # transformers would draw an output matrix at random for a Qwen2-Audio without one; the export has it.
    folder = tmp_path / ("back" if (kind, head) == ("qwen2_audio", "absent") else "hf")
    (sample,) = text(20)
    wanted = their_logits(type(theirs).from_pretrained(folder, dtype=torch.float32).eval(), sample)
    torch.testing.assert_close(ours(collate([sample]))[0], wanted, rtol=1e-4, atol=1e-4)
    again = type(theirs).from_pretrained(tmp_path / "back", dtype=torch.float32).eval()
    assert torch.equal(their_logits(again, sample), wanted)


def test_a_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    saved(LLAVA["clip"](), tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    weights = load_file(path)
    weights["lm_head.weight"] = torch.zeros(101, 32)
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(HuggingFaceError, match=r"one tensor twice, as '\S*lm_head.weight' and as '\S*lm_head.weight'"):
        import_model(tmp_path / "hf", tmp_path / "ours")


def test_numbers_of_positions_that_older_files_store_come_back(tmp_path: Path) -> None:
    saved(LLAVA["clip"](), tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    weights = load_file(path)
    name = "vision_tower.vision_model.embeddings.position_ids"
    weights[name] = torch.arange(17)[None]
    save_file(weights, path, metadata={"format": "pt"})
    import_model(tmp_path / "hf", tmp_path / "ours")
    (file,) = export_model(tmp_path / "ours", tmp_path / "back")
    assert torch.equal(load_file(file)[name], weights[name])


def test_a_window_that_is_in_use_is_refused_and_one_that_is_not_is_ignored(tmp_path: Path) -> None:
    saved(TEXT["qwen2"](), tmp_path / "hf")
    change(tmp_path / "hf", sliding_window=16)
    import_model(tmp_path / "hf", tmp_path / "ours")
    change(tmp_path / "hf", use_sliding_window=True)
    with pytest.raises(HuggingFaceError, match="sliding_window is 16"):
        import_model(tmp_path / "hf", tmp_path / "ours")


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(HuggingFaceError, match=r"config\.json is missing; name a folder"):
        import_model(tmp_path, tmp_path / "ours")
    hf = tmp_path / "hf"
    saved(TEXT["llama"](), hf, max_shard_size="20KB")
    shard = sorted(hf.glob("*.safetensors"))[1]
    data = shard.read_bytes()
    shard.write_bytes(b"not safetensors")
    with pytest.raises(HuggingFaceError, match=f"{shard.name} is not a safetensors file"):
        import_model(hf, tmp_path / "ours")
    shard.unlink()
    with pytest.raises(HuggingFaceError, match=f"{shard.name} is missing; model.safetensors.index.json names it"):
        import_model(hf, tmp_path / "ours")
    shard.write_bytes(data)
    import_model(hf, tmp_path / "ours")
    (tmp_path / "ours" / "hugging_face" / "tokenizer.json").write_text("other")
    with pytest.raises(HuggingFaceError, match=r"tokenizer\.json is missing or was changed since the import"):
        export_model(tmp_path / "ours", tmp_path / "back")
    with pytest.raises(HuggingFaceError, match="is not empty; name a new folder"):
        export_model(tmp_path / "ours", hf)


def test_a_stored_rotary_table_is_no_parameter(tmp_path: Path) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(weights, tmp_path / "hf" / "model.safetensors")
    import_model(tmp_path / "hf", tmp_path / "ours")


def test_a_model_without_a_tokenizer_says_why_it_is_not_served(tmp_path: Path) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").unlink()
    import_model(tmp_path / "hf", tmp_path / "ours", "tiny-llama")
    published.verify(tmp_path / "ours")
    with pytest.raises(PublishedError, match=r"'tiny-llama' was imported without tokenizer\.json"):
        published.load(tmp_path / "ours").own_processor()
    with pytest.raises(PublishedError, match=r"'tiny-llama' was imported without tokenizer\.json"):
        read_served_model(tmp_path / "ours", ServeConfig())
