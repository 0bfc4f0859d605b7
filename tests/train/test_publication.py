"""Publishing points at the checkpoint that training wrote, the best one unless told otherwise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from elasmo.model import published
from elasmo.model.fragment_writer import commit, write_file
from elasmo.model.fragments import WEIGHT, CheckpointError, Manifest
from elasmo.model.stores import open_store
from elasmo.train import checkpoint, retention
from elasmo.train.publication import publish
from tests.serve.tiny import tiny_model


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with checkpoints of steps 10 and 20 of a tiny model, the first one scored best."""
    model, processor = tiny_model()
    processor.save(tmp_path / "processor")
    for step in (10, 20):
        temporary = tmp_path / "checkpoints" / f".tmp{step}"
        temporary.mkdir(parents=True)
        values = {name: p.detach() * step for name, p in model.named_parameters()}
        file, parts = write_file(
            temporary / "rank-00000.safetensors", ((n, 0, {WEIGHT: v.reshape(-1)}) for n, v in values.items())
        )
        meta = {"config": {"model": model.config.model_dump(mode="json")}, "processor_hash": processor.fingerprint()}
        shapes = {name: tuple(value.shape) for name, value in values.items()}
        manifest = Manifest(step, shapes, (WEIGHT,), parts, (file,), meta)
        commit(temporary, tmp_path / "checkpoints" / retention.folder_name(step), manifest)
    retention.write_best(tmp_path, retention.folder_name(10), "mean_accuracy", 0.5)
    summary = {"run": "r", "name": "tiny", "gold": {"snapshot": "abc"}}
    (tmp_path / "run.json").write_text(json.dumps(summary))
    return tmp_path


@pytest.mark.parametrize(("step", "wanted"), [(None, 10), (20, 20)])
def test_the_chosen_checkpoint_is_served_as_it_lies(run: Path, step: int | None, wanted: int) -> None:
    done = publish(run, step)
    assert (done.step, done.name) == (wanted, "tiny")
    loaded = published.load(done.folder)
    for (name, ours), (_, original) in zip(
        loaded.model.named_parameters(), tiny_model()[0].named_parameters(), strict=True
    ):
        assert ours.detach().equal(original.detach() * wanted), name
    assert loaded.manifest["source"] == {"run": "r", "step": wanted, "gold": "abc"}
    assert not list(done.folder.glob("*.safetensors"))


def test_a_checkpoint_in_another_store_is_served_from_there(run: Path) -> None:
    store = open_store(f"memory://{uuid4().hex}/runs")
    for place in retention.committed(run / "checkpoints"):
        for name in place.files():
            store.child(place.name).put(name, bytes(place.read(name)))
    summary = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**summary, "checkpoints": store.url}))
    shutil.rmtree(run / "checkpoints")
    done = publish(run)
    loaded = published.load(done.folder)
    assert loaded.manifest["weights"]["folder"] == f"{store.url}/step-000010"
    original = tiny_model()[0]
    for ours, theirs in zip(loaded.model.parameters(), original.parameters(), strict=True):
        assert ours.detach().equal(theirs.detach() * 10)
    retention.write_best(run, retention.folder_name(20), "mean_accuracy", 0.9)
    assert retention.prune(store, 1, retention.pinned(run)) == []


def test_a_published_checkpoint_survives_pruning(run: Path) -> None:
    publish(run, 10)
    retention.write_best(run, retention.folder_name(20), "mean_accuracy", 0.9)
    assert retention.prune(run / "checkpoints", 1, retention.pinned(run)) == []


def test_pruning_keeps_the_newest_and_the_best(run: Path) -> None:
    for step in (15, 30):  # what a dead writer left, and what is being written
        (run / "checkpoints" / retention.folder_name(step)).mkdir()
    removed = retention.prune(run / "checkpoints", 1, set())
    assert removed == ["step-000010", "step-000015"]
    assert [path.name for path in retention.committed(run / "checkpoints")] == ["step-000020"]


def test_a_step_that_is_not_there_and_a_folder_that_is_no_run_are_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no committed checkpoint of step 15; it has 10, 20"):
        publish(run, 15)
    with pytest.raises(CheckpointError, match="is not a run folder"):
        publish(tmp_path / "elsewhere")


def test_another_processor_is_refused(run: Path) -> None:
    settings = json.loads((run / "processor" / "processor.json").read_text())
    settings["table_fields"] = []
    (run / "processor" / "processor.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="is not the processor that"):
        publish(run)


def test_a_checkpoint_of_another_plan_is_refused_by_the_setting_that_differs() -> None:
    cursor = {"step": 10, "gold": "abc", "seed": 0, "global_batch": 64}
    manifest = Manifest(10, {}, (WEIGHT,), (), (), {"cursor": cursor, "processor_hash": "p"})
    checkpoint.check_resumable(manifest, dict(cursor), "p", "step-000010")
    for name, other in (("gold", "xyz"), ("seed", 1), ("global_batch", 32)):
        with pytest.raises(CheckpointError, match=f"under {name}={cursor[name]}, this run has {other}"):
            checkpoint.check_resumable(manifest, {**cursor, name: other}, "p", "step-000010")
