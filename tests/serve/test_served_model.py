"""What the ingress reads of a published model, and how a folder that is none is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elasmo.config import EngineConfig, ServeConfig
from elasmo.model import published
from elasmo.model.published import PublishedError
from elasmo.serve.served_model import read_served_model
from tests.serve.tiny import CONFIG, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("published")
    published.write(path, "tiny", *tiny_model(), {})
    return path


def test_it_agrees_with_the_whole_model(folder: Path) -> None:
    model, processor = read_served_model(folder, ServeConfig())
    whole = published.load(folder)
    assert (model.name, model.context) == ("tiny", CONFIG.decoder.max_seq)
    assert model.fingerprint == f"fp_{whole.model_hash[:12]}"
    assert processor.fingerprint() == whole.processor.fingerprint()


def test_name_and_context_follow_the_configuration(folder: Path) -> None:
    engine = EngineConfig(block_size=4, blocks=10)
    model, _ = read_served_model(folder, ServeConfig(model_name="mine", engine=engine))
    assert (model.name, model.context) == ("mine", 40)
    half, _ = read_served_model(folder, ServeConfig(engine=EngineConfig(dtype="bfloat16")))
    assert 2 * half.kv_token_bytes == model.kv_token_bytes


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PublishedError, match="elasmo publish"):
        read_served_model(tmp_path, ServeConfig())


@pytest.mark.parametrize("manifest", ["{", "[]", "{}", '{"name": "x", "model": {"decoder": {"hidden": "wide"}}}'])
def test_a_damaged_manifest_is_refused_by_name(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(PublishedError, match=r"manifest\.json"):
        read_served_model(tmp_path, ServeConfig())


def test_another_processor_is_refused(folder: Path, tmp_path: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "processor_hash": "other"}))
    (tmp_path / "processor").symlink_to(folder / "processor")
    with pytest.raises(PublishedError, match="processor"):
        read_served_model(tmp_path, ServeConfig())
