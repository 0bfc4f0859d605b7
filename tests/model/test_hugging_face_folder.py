"""Imports and exports never write over somebody's files, and are whole or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elasmo.model import published
from elasmo.model.fragments import CheckpointError
from elasmo.model.hugging_face import export_model, import_model
from elasmo.model.hugging_face_defaults import HuggingFaceError
from elasmo.model.hugging_face_tensors import INDEX
from elasmo.model.published import PublishedError
from tests.model.test_hugging_face import TEXT, saved


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    out = tmp_path / "mine"
    for name in ("weights", "hugging_face", "processor"):
        (out / name).mkdir(parents=True)
        (out / name / "precious.txt").write_text(name)
    before = listing(out)
    for replace in (False, True):
        with pytest.raises(HuggingFaceError, match="mine is not empty and holds no imported model; name a new folder"):
            import_model(tmp_path / "hf", out, replace=replace)
    (out / "manifest.json").write_text('{"format": 1, "source": {"run": "x"}}')
    with pytest.raises(HuggingFaceError, match="holds no imported model"):
        import_model(tmp_path / "hf", out, replace=True)
    (out / "manifest.json").unlink()
    with pytest.raises(HuggingFaceError, match="hf is not empty and holds no imported model"):
        import_model(tmp_path / "hf", tmp_path / "hf")
    assert listing(out) == before


def test_an_import_is_replaced_by_the_same_folders_and_by_anothers_when_told_to(tmp_path: Path) -> None:
    saved(TEXT["llama"](), tmp_path / "one")
    saved(TEXT["qwen3"](), tmp_path / "two")
    (tmp_path / "two" / "tokenizer.json").unlink()
    out = tmp_path / "ours"
    first = import_model(tmp_path / "one", out)
    assert import_model(tmp_path / "one", out).model_hash == first.model_hash
    (out / "notes.txt").write_text("mine")
    with pytest.raises(
        HuggingFaceError, match=r"imported from .*one; name another folder, or replace that model with -"
    ):
        import_model(tmp_path / "two", out)
    assert published.load(out).model_hash == first.model_hash
    second = import_model(tmp_path / "two", out, replace=True)
    assert published.load(out).model_hash == second.model_hash != first.model_hash
    assert {path.name for path in out.iterdir()} == {"manifest.json", "weights", "hugging_face", "notes.txt"}


def test_an_import_that_fails_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    before = listing(tmp_path / "ours")

    def full(*_: Any) -> str:
        raise OSError(28, "No space left on device", "weights/model.safetensors")

    monkeypatch.setattr(published, "publish_imported", full)
    with pytest.raises(HuggingFaceError, match="safetensors cannot be read or written: No space left on device"):
        import_model(tmp_path / "hf", tmp_path / "ours")
    assert listing(tmp_path / "ours") == before
    with pytest.raises(HuggingFaceError, match="No space left"):
        import_model(tmp_path / "hf", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_source_inside_the_target_is_refused(tmp_path: Path) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    with pytest.raises(HuggingFaceError, match=r"hugging_face lies in .*ours, which the import would replace"):
        import_model(tmp_path / "ours" / "hugging_face", tmp_path / "ours", replace=True)


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/none"])
def test_a_target_that_cannot_be_written_is_named(tmp_path: Path, out: str) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    (tmp_path / "file").write_text("mine")
    for attempt in (
        lambda: import_model(tmp_path / "hf", tmp_path / out),
        lambda: export_model(tmp_path / "ours", tmp_path / out),
    ):
        with pytest.raises(HuggingFaceError, match=r"file is not a folder|cannot be read or written: "):
            attempt()
    assert (tmp_path / "file").read_text() == "mine"


def test_an_export_without_its_weights_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    weights = tmp_path / "ours" / "weights" / "model.safetensors"
    data = weights.read_bytes()
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing; it holds tensor"):
        export_model(tmp_path / "ours", tmp_path / "back")
    weights.write_bytes(data[:-1])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="differs from its manifest"):
        export_model(tmp_path / "ours", tmp_path / "empty")
    assert not (tmp_path / "back").exists() and not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize("content", [b"\xff\xfe{", b"[1]", b"{}", b'{"format": 1, "model": {}, "weights": 3}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(PublishedError, match=r"manifest\.json is not a manifest of `elasmo publish`"):
        export_model(tmp_path, tmp_path / "back")


def test_a_manifest_that_keeps_files_from_elsewhere_is_refused(tmp_path: Path) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    manifest = json.loads((tmp_path / "ours" / "manifest.json").read_text())
    manifest["kept"][0]["name"] = "../manifest.json"
    (tmp_path / "ours" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PublishedError, match="kept names a file outside the folder"):
        export_model(tmp_path / "ours", tmp_path / "back")


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        ({}, "lacks weight_map, a file name for each tensor"),
        ({"weight_map": [1]}, "lacks weight_map"),
        ({"weight_map": {"a": 1}}, "weight_map has 1 for 'a'; it must name a file of the folder"),
        ({"weight_map": {"a": "../hf/model.safetensors"}}, "weight_map has '../hf/model.safetensors' for 'a'; it must"),
        ({"weight_map": {"a": "/etc/passwd"}}, "weight_map has '/etc/passwd' for 'a'; it must"),
        ([1], "is not JSON of settings by name, but a list"),
    ],
)
def test_an_index_that_names_no_files_of_the_folder_is_refused(tmp_path: Path, index: Any, sentence: str) -> None:
    saved(TEXT["llama"](), tmp_path / "hf")
    (tmp_path / "hf" / INDEX).write_text(json.dumps(index))
    with pytest.raises(HuggingFaceError, match=sentence):
        import_model(tmp_path / "hf", tmp_path / "ours")
