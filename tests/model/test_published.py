"""A published model comes back bit for bit, and whatever differs from its manifest is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasmo.config import LimitsConfig
from elasmo.model.batch import collate
from elasmo.model.fragment_writer import commit, write_file
from elasmo.model.fragments import CheckpointError, Manifest, split_evenly
from elasmo.model.published import PublishedError, load, publish, verify, write
from elasmo.model.sample import Image, Message, Text
from tests.serve.tiny import png, tiny_model

MODEL, PROCESSOR = tiny_model(seed=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "published", "tiny", MODEL, PROCESSOR, {"run": "r1"})
    return tmp_path / "published"


def alter(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@torch.no_grad()
def test_what_was_written_is_what_is_loaded(folder: Path) -> None:
    published = load(folder)
    assert published.name == "tiny" and published.manifest["source"] == {"run": "r1"}
    assert published.processor.fingerprint() == PROCESSOR.fingerprint()
    assert not published.model.training
    loaded, original = published.model.state_dict(), MODEL.state_dict()
    assert loaded.keys() == original.keys() and all(torch.equal(loaded[name], original[name]) for name in loaded)
    question = PROCESSOR.encode_chat([Message("user", (Image(png()), Text("which?")))], LimitsConfig(), True)
    assert torch.equal(published.model(collate([question])), MODEL(collate([question])))


def test_the_hash_names_the_weights_and_not_the_place(tmp_path: Path) -> None:
    same = [write(tmp_path / name, name, MODEL, PROCESSOR, {}) for name in ("a", "b")]
    other = write(tmp_path / "c", "c", tiny_model(seed=4)[0], PROCESSOR, {})
    assert same[0] == same[1] != other
    assert load(tmp_path / "a").model_hash == same[0]


def test_weights_stay_in_the_checkpoint_that_several_ranks_wrote(tmp_path: Path) -> None:
    parameters = dict(MODEL.named_parameters())
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    temporary = tmp_path / ".checkpoint"
    temporary.mkdir()
    written = [
        write_file(
            temporary / f"rank-{rank}.safetensors",
            [
                (name, start, {"weight": parameters[name].detach().view(-1)[start:stop]})
                for name, start, stop in split_evenly(shapes, rank, 3)
            ],
        )
        for rank in range(3)
    ]
    fragments = tuple(fragment for _, parts in written for fragment in parts)
    checkpoint = tmp_path / "checkpoints" / "step-000007"
    checkpoint.parent.mkdir()
    commit(temporary, checkpoint, Manifest(7, shapes, ("weight",), fragments, tuple(file for file, _ in written)))
    publish(tmp_path / "published", "tiny", MODEL.config, PROCESSOR, checkpoint, {})
    assert not list((tmp_path / "published").rglob("*.safetensors"))
    loaded = load(tmp_path / "published").model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in MODEL.state_dict().items())


def test_a_run_folder_may_move(tmp_path: Path, folder: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    assert load(moved).name == "tiny"


def test_a_flipped_byte_is_refused_naming_file_and_tensor(folder: Path) -> None:
    weights = next(folder.rglob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(data)
    with pytest.raises(PublishedError, match=r"model\.safetensors differs from its manifest in 'weight' of tensor '"):
        load(folder)


def test_a_missing_shard_is_refused_by_name(folder: Path) -> None:
    next(folder.rglob("*.safetensors")).unlink()
    with pytest.raises(PublishedError, match=r"model\.safetensors is missing; it holds tensor"):
        load(folder)


def test_a_damaged_checkpoint_is_not_published(tmp_path: Path, folder: Path) -> None:
    next(folder.rglob("*.safetensors")).write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"model\.safetensors differs"):
        publish(tmp_path / "again", "tiny", MODEL.config, PROCESSOR, folder / "weights", {})
    assert not (tmp_path / "again").exists()


def _raise_rope(manifest: dict[str, Any]) -> None:
    manifest["model"]["decoder"]["rope_theta"] = 500.0


def _other_sha(manifest: dict[str, Any]) -> None:
    manifest["weights"]["manifest"]["files"][0]["sha256"] = "0" * 64


@pytest.mark.parametrize("change", [_raise_rope, _other_sha], ids=["model", "weights"])
def test_an_altered_manifest_is_refused(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    alter(folder, change)
    with pytest.raises(PublishedError, match="was altered: model_hash"):
        load(folder)


def test_another_processor_is_refused(folder: Path) -> None:
    settings = folder / "processor" / "processor.json"
    settings.write_text(settings.read_text().replace('"mean": 40.0', '"mean": 41.0'))
    with pytest.raises(PublishedError, match="processor differs from the manifest"):
        load(folder)


def test_a_damaged_processor_is_refused_as_published(folder: Path) -> None:
    (folder / "processor" / "tokenizer.json").write_text("{")
    with pytest.raises(PublishedError, match="holds no usable processor"):
        load(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not a manifest of `elasmo publish`"),
        ("[]", "is not a manifest of `elasmo publish`"),
        ("{}", "is not a manifest of `elasmo publish`"),
        ('{"format": 99}', "has format 99; this version reads 1"),
    ],
)
def test_a_manifest_of_something_else_is_refused(folder: Path, text: str, says: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(PublishedError, match=says):
        load(folder)


def test_a_folder_without_a_model_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(PublishedError, match="elasmo publish RUN"):
        load(tmp_path)


def test_verifying_reads_every_file_and_names_the_damaged_one(tmp_path: Path) -> None:
    model, processor = tiny_model()
    write(tmp_path, "tiny", model, processor, {})
    verify(tmp_path)
    (weights,) = (tmp_path / "weights").glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(PublishedError, match=rf"{weights.name} differs from its manifest"):
        verify(tmp_path)
    weights.unlink()
    with pytest.raises(PublishedError, match=rf"{weights.name} is missing"):
        verify(tmp_path)
