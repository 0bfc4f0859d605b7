"""Adapters change nothing at first, learn what the closed form says, and merge into the weights they stand for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from elasmo.config import LoraConfig
from elasmo.model import lora, published
from elasmo.model.batch import collate, pack
from elasmo.model.encoded import Encoded
from elasmo.model.fragment_writer import commit, write_file
from elasmo.model.fragments import WEIGHT, FragmentReader, Manifest
from elasmo.model.hugging_face import import_model
from elasmo.model.hugging_face_defaults import HuggingFaceError
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.train.freeze import freeze
from tests.model.test_hugging_face import LLAVA, TEXT, saved
from tests.parallel import oracle

CONFIG = LoraConfig(rank=3, alpha=6.0, targets=("q_proj", "down_proj"))
BATCH = pack(oracle.slots("dense", 0)[0])


def adapted() -> MultimodalDecoder:
    model = oracle.make_model("dense")
    lora.add_adapters(model, CONFIG, seed=1)
    return model


def written(model: MultimodalDecoder, folder: Path) -> Path:
    temporary = folder.with_name(".part")
    temporary.mkdir()
    parameters = dict(model.named_parameters())
    slices = ((name, 0, {WEIGHT: p.detach().view(-1)}) for name, p in parameters.items())
    file, fragments = write_file(temporary / "w.safetensors", slices)
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    commit(temporary, folder, Manifest(5, shapes, (WEIGHT,), fragments, (file,)))
    return folder


def randomise(model: MultimodalDecoder) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(lora.B):
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))


@torch.no_grad()
def test_a_fresh_adapter_leaves_the_output_bit_equal() -> None:
    assert torch.equal(adapted()(BATCH), oracle.make_model("dense")(BATCH))


def test_only_adapters_learn_and_their_gradient_is_the_closed_form() -> None:
    model, plain = adapted(), oracle.make_model("dense")
    randomise(model)
    frozen = freeze(model, lora.FROZEN)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * oracle.DECODER.layers and all(name.endswith((lora.A, lora.B)) for name in trained)
    assert set(frozen) == {name for name, _ in plain.named_parameters()}
    with torch.no_grad():  # the dense model with the same effective weights
        for name, parameter in plain.named_parameters():
            module = model.get_submodule(name.rpartition(".")[0])
            if isinstance(module, lora.LoraLinear) and name.endswith("weight"):
                parameter.add_(module.lora_b @ module.lora_a * 2.0)
    for each in (model, plain):
        each.target_losses(BATCH)[0].sum().backward()
    for name, module in model.named_modules():
        if isinstance(module, lora.LoraLinear):
            gradient = plain.get_submodule(name).weight.grad
            assert isinstance(gradient, torch.Tensor) and module.weight.grad is None
            torch.testing.assert_close(module.lora_b.grad, 2.0 * gradient @ module.lora_a.T, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(module.lora_a.grad, 2.0 * module.lora_b.T @ gradient, rtol=1e-3, atol=1e-5)


@torch.no_grad()
def test_merged_weights_give_the_adapted_model(tmp_path: Path) -> None:
    model, merged = adapted(), oracle.make_model("dense")
    randomise(model)
    folder = lora.merge(written(model, tmp_path / "step"), tmp_path / "merged", CONFIG)
    reader = FragmentReader(folder)
    reader.verify()
    assert set(reader.manifest.shapes) == {name for name, _ in merged.named_parameters()}
    for name, parameter in merged.named_parameters():
        parameter.copy_(reader.tensor(name))
    torch.testing.assert_close(merged(BATCH), model(BATCH), rtol=1e-4, atol=1e-4)


def test_an_export_has_the_names_and_numbers_of_peft(tmp_path: Path) -> None:
    model = adapted()
    randomise(model)
    path = lora.export(written(model, tmp_path / "step"), tmp_path / "out", CONFIG, model.config)
    tensors = load_file(path)
    assert len(tensors) == 2 * 2 * oracle.DECODER.layers
    module = model.decoder.layers[1].self_attn.q_proj
    assert isinstance(module, nn.Linear)
    prefix = "base_model.model.model.layers.1.self_attn.q_proj"
    assert torch.equal(tensors[f"{prefix}.lora_A.weight"], module.lora_a)
    assert torch.equal(tensors[f"{prefix}.lora_B.weight"], module.lora_b)
    described = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (described["r"], described["lora_alpha"]) == (3, 6.0)
    assert described["target_modules"] == ["q_proj", "down_proj"]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["text", "llava"])
def test_peft_loads_an_export_and_merges_it_to_the_same_weights(tmp_path: Path, kind: str) -> None:
    """LLaVA's vision tower has matrices of the same names as its decoder, and must not be adapted."""
    peft = pytest.importorskip("peft")
    made = TEXT["llama"]() if kind == "text" else LLAVA["clip"]()
    theirs = saved(made, tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    config = LoraConfig(rank=3, alpha=6.0, targets=("q_proj", "v_proj"))
    model = published.load(tmp_path / "ours").model
    lora.add_adapters(model, config, seed=1)
    randomise(model)
    checkpoint = written(model, tmp_path / "step")
    lora.export(checkpoint, tmp_path / "adapters", config, model.config)
    wrapped = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapters")
    adapted_names = [name for name, _ in wrapped.named_parameters() if ".lora_" in name]
    assert len(adapted_names) == 2 * 2 * 2 and not any("vision" in name for name in adapted_names)
    ids = torch.arange(3, 20)[None]
    untouched = type(theirs).from_pretrained(tmp_path / "hf")(input_ids=ids).logits
    sample = Encoded.of_tokens(ids[0].numpy().astype(np.int32), np.zeros(17, np.uint8))
    wanted = model(collate([sample]))
    assert (wanted[0] - untouched[0]).abs().max() > 0.01
    torch.testing.assert_close(wrapped(input_ids=ids).logits, wanted, rtol=1e-4, atol=1e-4)
    merged = wrapped.merge_and_unload()
    torch.testing.assert_close(merged(input_ids=ids).logits, wanted, rtol=1e-4, atol=1e-4)


def test_adapters_of_a_multimodal_decoder_have_full_names_and_a_pattern_that_leaves_towers_out(tmp_path: Path) -> None:
    theirs = saved(LLAVA["clip"](), tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    config = LoraConfig(rank=3, alpha=6.0, targets=("q_proj", "down_proj"))
    model = published.load(tmp_path / "ours").model
    lora.add_adapters(model, config, seed=1)
    path = lora.export(written(model, tmp_path / "step"), tmp_path / "out", config, model.config)
    modules = dict(theirs.named_modules())
    held = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in load_file(path)}
    assert held == {
        f"model.language_model.layers.{layer}.{name}"
        for layer in range(2)
        for name in ("self_attn.q_proj", "mlp.down_proj")
    }
    pattern = json.loads((tmp_path / "out" / "adapter_config.json").read_text())["target_modules"]
    assert {name for name in modules if re.fullmatch(pattern, name)} == held


def test_adapters_are_not_written_over_files(tmp_path: Path) -> None:
    model = adapted()
    checkpoint = written(model, tmp_path / "step")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(HuggingFaceError, match="file is not a folder; name a new folder"):
        lora.export(checkpoint, tmp_path / "file", CONFIG, model.config)
    with pytest.raises(HuggingFaceError, match="is not empty; name a new folder"):
        lora.export(checkpoint, tmp_path, CONFIG, model.config)


def test_a_target_that_is_no_matrix_is_named() -> None:
    with pytest.raises(
        lora.LoraError, match=r"targets has 'query'; the decoder's matrices are down_proj, gate_proj, k_"
    ):
        lora.add_adapters(oracle.make_model("dense"), LoraConfig(targets=("query",)), 0)
