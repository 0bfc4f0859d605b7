"""Training on a real cluster through faults: a corrupted checkpoint, a NaN, a lost node with the memory tier."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from elasmo.config import Config, load
from elasmo.train import RunResult, fit
from elasmo.train.local_cluster import LocalCluster
from elasmo.train.run_folder import LogReader, events
from tests.cluster.conftest import TINY


@pytest.fixture(scope="module")
def cluster(lake: Path) -> Iterator[LocalCluster]:
    config = load(None, [*TINY], {})
    with LocalCluster(config.ray, dashboard=False) as made:
        made.connect()
        yield made


def config(lake: Path, storage: Path, *overrides: str) -> Config:
    own = [f"data.lake={lake}", f"train.storage={storage}", "data.engine=direct", "train.eval_every=40"]
    return load(None, [*TINY, *own, "train.steps=24", "train.checkpoint_every=5", *overrides], {})


def losses(result: RunResult) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in events(result.folder, "step")}


@pytest.mark.full
def test_a_killed_rank_with_a_corrupted_newest_checkpoint_and_a_nan_end_in_the_same_run(
    cluster: LocalCluster, lake: Path, tmp_path: Path
) -> None:
    """Before step 15 the newest of two checkpoints is corrupted and a rank dies; step 8 was NaN on the other."""
    chaos = "train.chaos=[{step: 8, rank: 1, do: nan}, {step: 15, rank: 1, do: corrupt}, {step: 15, rank: 0, do: kill}]"
    result = fit(config(lake, tmp_path, "train.faults.on_non_finite=skip", chaos), run_id="faults")
    assert result.receipts.match
    (fallback,) = events(result.folder, "fallback")
    assert (fallback["refused_step"], fallback["to_step"]) == (10, 5) and "of tensor '" in fallback["reason"]
    (resize,) = result.resizes
    assert (resize["restored_step"], resize["restored_from"]) == (5, "storage")
    assert resize["refused_checkpoints"][0]["step"] == 10
    # Step 8 was done again, this time with a finite loss, and was skipped again.
    eighth = [event for event in events(result.folder, "step") if event["step"] == 8]
    assert [event["skipped"]["known"] for event in eighth] == [False, True]
    assert eighth[0]["loss"] is None and eighth[1]["loss"] is not None
    assert eighth[0]["skipped"]["reason"] == "the loss on rank 1 is not finite" and eighth[0]["skipped"]["slots"]
    assert eighth[0]["receipt"] == eighth[1]["receipt"]
    # A run in which nothing but the NaN happened has the same curve.
    calm = fit(
        config(lake, tmp_path, "train.faults.on_non_finite=skip", "train.chaos=[{step: 8, rank: 1, do: nan}]"),
        run_id="calm",
    )
    ours, theirs = losses(result), losses(calm)
    assert {step: ours[step] for step in ours if step != 8} == pytest.approx(
        {step: theirs[step] for step in theirs if step != 8}, rel=1e-6
    )


@pytest.mark.full
def test_a_flipped_bit_and_a_rollback_each_go_back_to_a_checkpoint(
    cluster: LocalCluster, lake: Path, tmp_path: Path
) -> None:
    """A weight of one rank changes by a bit before step 13; in the next life step 18 is NaN."""
    wanted = config(
        lake,
        tmp_path,
        "train.faults={on_non_finite: rollback, checksum_every: 1, on_corruption: restore}",
        "train.chaos=[{step: 13, rank: 1, do: flip}, {step: 18, rank: 0, do: nan, attempt: 2}]",
    )
    result = fit(wanted, run_id="back")
    assert result.receipts.match
    corruption, rollback = events(result.folder, "fault")
    assert (corruption["kind"], corruption["step"], corruption["clean_step"]) == ("corruption", 13, 11)
    assert corruption["ranks"] == [0, 1] and corruption["tensor"]  # of two copies none is the majority
    assert (rollback["kind"], rollback["step"], len(rollback["slots"])) == ("rollback", 18, 2)
    assert [resize["restored_step"] for resize in result.resizes] == [10, 15]
    assert all("RolledBack" in resize["reason"] for resize in result.resizes)
    last = {event["step"]: event for event in events(result.folder, "step")}
    assert [step for step, event in last.items() if "skipped" in event] == [18] and last[18]["skipped"]["known"]


def test_a_lost_node_costs_a_step_or_two_when_every_step_is_in_memory(
    cluster: LocalCluster, lake: Path, tmp_path: Path
) -> None:
    """The node that dies takes one of the two copies with it; nothing was in storage yet."""
    wanted = config(lake, tmp_path, "train.checkpoint_every=100", "train.memory.every=1", "train.memory.budget_mb=32")
    killer = _Killer(cluster, at_step=12)
    result = fit(wanted, run_id="memory", on_start=killer.watch)
    killer.join()
    assert result.receipts.match
    (resize,) = result.resizes
    assert resize["restored_from"] == "memory" and resize["steps_redone"] <= 2 and resize["restored_step"] >= 10
    assert resize["bytes_read"] > 0 and resize["read_gb_s"] > 0
    kept = events(result.folder, "memory_checkpoint")
    assert not any("refused" in event for event in kept)
    assert {event["copies"] for event in kept if event["attempt"] == 1} == {2}
    assert {event["copies"] for event in kept if event["attempt"] == 2} == {1}  # of the node that is left
    # Nothing stays behind: holders go with the run.
    assert not [name for name in ray.util.list_named_actors(all_namespaces=True) if "memory" in name["name"]]


class _Killer:
    """Kills the newest node once a step is committed."""

    def __init__(self, cluster: LocalCluster, at_step: int) -> None:
        self._cluster, self._at_step = cluster, at_step
        self._thread: threading.Thread | None = None

    def watch(self, run_id: str, folder: Path, state: Any) -> None:
        self._thread = threading.Thread(target=self._wait, args=(folder,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(60)

    def _wait(self, folder: Path) -> None:
        reader, pause = LogReader(folder), threading.Event()
        while not any(event["event"] == "step" and event["step"] >= self._at_step for event in reader.read()):
            pause.wait(0.05)
        self._cluster.kill_node()
