"""Training on a real cluster that loses a node: same samples once, same losses, every cost told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from elasmo.cli import demo_train
from elasmo.cli.demo_train import Trained
from elasmo.config import Config, load
from elasmo.data.plan import step_receipt
from elasmo.data.stream import make_plan, open_gold
from elasmo.model.fragments import FragmentReader
from elasmo.train import RunResult, TrainError, fit
from elasmo.train.local_cluster import LocalCluster
from elasmo.train.run_folder import events
from elasmo.train.trace import trace_step
from tests.cluster.conftest import TINY


class Lost:
    """A run that lost a node, and what was said meanwhile."""

    def __init__(self, config: Config, trained: Trained, said: list[str]) -> None:
        self.config, self.trained, self.said = config, trained, said
        self.folder = trained.result.folder


@pytest.fixture(scope="module")
def lost(lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lost]:
    """40 steps on two raylets, one of which is killed on the way; what is left stays up for the module."""
    storage = tmp_path_factory.mktemp("runs")
    own = [f"data.lake={lake}", f"train.storage={storage}"]
    config = load(None, [*TINY, *own, "train.steps=40", "train.checkpoint_every=10", "train.eval_every=20"], {})
    said: list[str] = []
    with LocalCluster(config.ray, dashboard=False) as cluster:
        cluster.connect()
        yield Lost(config, demo_train.train(config, cluster, lambda *_: None, said.append), said)


def test_every_committed_step_read_the_planned_rows(lost: Lost) -> None:
    config = lost.config
    plan = make_plan(config, open_gold(config))
    receipts = {event["step"]: event["receipt"] for event in events(lost.folder, "step")}
    # From the plan's digests, not from the plan's own receipt.
    wanted = {step: step_receipt([slot.digest() for slot in plan.slots(step - 1)]) for step in range(1, 41)}
    assert receipts == wanted
    assert lost.trained.result.receipts.match


def test_a_step_is_traced_to_its_source_rows(lost: Lost) -> None:
    for step in (1, lost.trained.resize["committed_step"], 40):
        found = trace_step(lost.folder, step)
        assert found.proven and len(found.rows) == 16
        assert all(source.file for row in found.rows for source in row.sources)


def test_the_resize_tells_who_was_lost_what_was_redone_and_how_long_it_took(lost: Lost) -> None:
    resize = lost.trained.resize
    assert (resize["from_world"], resize["to_world"]) == (2, 1)
    assert resize["lost"].startswith("node ") and "rank" in resize["reason"]
    assert resize["measured_from"] == "fault"
    assert 0 < resize["steps_redone"] <= lost.config.train.checkpoint_every
    assert resize["restored_step"] + resize["steps_redone"] == resize["committed_step"]
    assert resize["samples_returned"] == 16 * resize["steps_redone"]
    assert resize["plan_before"]["lr"] == resize["plan_after"]["lr"]
    assert resize["plan_before"]["global_batch"] == resize["plan_after"]["global_batch"] == 16
    assert resize["plan_after"]["micro_steps"] == 2 * resize["plan_before"]["micro_steps"]
    phases = {name: value for name, value in resize["seconds"].items() if name != "total"}
    assert all(value is not None for value in phases.values())
    assert sum(phases.values()) == pytest.approx(resize["seconds"]["total"], abs=0.01)
    assert any("Killed node" in line for line in lost.said)


def test_losses_after_the_resize_are_those_of_an_undisturbed_run_of_the_new_size(lost: Lost) -> None:
    assert lost.trained.compared == 10
    assert lost.trained.difference <= 1e-5


def test_steps_that_were_redone_lost_the_same_to_rounding(lost: Lost) -> None:
    first, second = {}, {}
    for event in events(lost.folder, "step"):
        (first if event["attempt"] == 1 else second)[event["step"]] = event["loss"]
    redone = sorted(set(first) & set(second))
    assert len(redone) == lost.trained.resize["steps_redone"]
    for step in redone:
        assert second[step] == pytest.approx(first[step], rel=1e-5)


def test_evaluation_counts_every_held_out_row_once_and_the_best_checkpoint_is_kept(lost: Lost) -> None:
    evaluations = events(lost.folder, "eval")
    held_out = len(open_gold(lost.config).index("heldout"))
    assert {event["step"] for event in evaluations} == {20, 40}
    assert all(event["rows"] == held_out for event in evaluations)
    best = json.loads((lost.folder / "best.json").read_text())
    FragmentReader(lost.folder / best["path"]).verify()
    means = {event["step"]: sum(event["accuracy"].values()) / len(event["accuracy"]) for event in evaluations}
    assert best["value"] == pytest.approx(max(means.values()))


def test_tensorboard_files_hold_the_logged_losses(lost: Lost) -> None:
    board = EventAccumulator(str(lost.folder / "tensorboard"))
    board.Reload()
    written = {item.step: item.value for item in board.Scalars("train/loss")}
    logged = {event["step"]: event["loss"] for event in events(lost.folder, "step")}
    assert written == pytest.approx(logged, rel=1e-6)


def test_the_summary_tells_the_run(lost: Lost) -> None:
    summary = json.loads((lost.folder / "run.json").read_text())
    assert summary["status"] == "succeeded"
    assert summary["world_sizes"] == [2, 1]
    assert summary["receipts_match_plan"] is True
    assert summary["parameters"] > 10_000


def resume(lost: Lost, name: str, tmp_path: Path, *overrides: str) -> RunResult:
    """A run taken up at a copy of the killed run's last checkpoints."""
    shutil.copytree(lost.folder / "checkpoints", tmp_path / name / "checkpoints")
    config = load(
        None,
        [
            *TINY,
            f"data.lake={lost.config.data.lake}",
            f"train.storage={tmp_path}",
            "train.steps=42",
            "train.workers.max=1",
            "train.workers.wait_s=5",
            *overrides,
        ],
        {},
    )
    return fit(config, run_id=name)


def test_a_missing_shard_in_the_only_checkpoint_stops_the_run_at_once_and_is_named(lost: Lost, tmp_path: Path) -> None:
    newest = sorted((lost.folder / "checkpoints").iterdir())[-1]
    name = sorted(newest.glob("*.safetensors"))[0].name
    shutil.copytree(newest, tmp_path / "damaged" / "checkpoints" / newest.name)
    (tmp_path / "damaged" / "checkpoints" / newest.name / name).unlink()
    overrides = [f"data.lake={lost.config.data.lake}", f"train.storage={tmp_path}", "train.steps=42"]
    config = load(None, [*TINY, *overrides, "train.workers.max=1"], {})
    with pytest.raises(TrainError, match=rf"No checkpoint of the run is whole: .*{name} is missing; it holds tensor"):
        fit(config, run_id="damaged")
    assert json.loads((tmp_path / "damaged" / "run.json").read_text())["status"] == "failed"
    assert len(events(tmp_path / "damaged", "attempt")) == 1
    assert (tmp_path / "damaged" / "checkpoints" / newest.name / "manifest.json").is_file()


def test_a_run_goes_on_from_its_last_checkpoint(lost: Lost, tmp_path: Path) -> None:
    result = resume(lost, "resumed", tmp_path, "data.engine=direct")
    steps = [event["step"] for event in events(result.folder, "step")]
    assert steps == [41, 42]
    assert ray.is_initialized()


def test_too_few_workers_is_said_after_the_deadline(lost: Lost, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match=r"no 5 worker\(s\).*train.workers.wait_s.*lower train.workers.min"):
        resume(lost, "starved", tmp_path, "train.workers.min=5", "train.workers.max=5")
