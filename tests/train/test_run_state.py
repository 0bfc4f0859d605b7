"""The run's state hands out restore points, falls back to older ones, and remembers steps that are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from elasmo.config import Config, load
from elasmo.model.fragment_writer import Piece
from elasmo.train import retention, run_folder
from elasmo.train.checkpoint_commit import write
from elasmo.train.ledger import RankStep, Restored
from elasmo.train.run_state import RunState
from elasmo.train.snapshot import Snapshot

PLAN = {"dp": 1, "global_batch": 8, "micro_batch": 4, "slots": 2, "parameters": 10}


def config() -> Config:
    return load(None, ["train.log.tensorboard=false"], {})


def save(folder: Path, step: int) -> None:
    parts = Snapshot((Piece("w", 0, {"weight": torch.ones(4)}),), {"w": (4,)})
    write(parts, folder / "checkpoints", step, {}, 0, lambda value: [value])


def report(step: int, loss: float = 2.0, skipped: dict[str, Any] | None = None) -> RankStep:
    return RankStep(
        step, {0: "a"}, {"text": loss}, {"text": 4}, {"step": 0.1}, {"decoder": 9}, 0.1, None, skipped=skipped
    )


def test_refused_checkpoints_are_set_aside_only_once_an_older_one_is_whole(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    retention.write_best(tmp_path, "step-000030", "mean_accuracy", 0.9)
    state = RunState(config(), str(tmp_path), "run")
    begun = state.begin(1, PLAN, ("n",))
    assert begun.point is not None and begun.point.step == 30
    second = state.older(begun.attempt, begun.point, "step-000030/f differs in tensor 'w'")
    assert second is not None
    third = state.older(begun.attempt, second, "manifest cut short")
    assert third is not None and (second.step, third.step) == (20, 10)
    assert state.window() == (1, 10)  # where the data stream starts
    assert [place.name[-2:] for place in retention.committed(tmp_path / "checkpoints")] == ["10", "20", "30"]
    state.restored(begun.attempt, Restored(5, "storage", 0.1))
    assert [place.name[-2:] for place in retention.committed(tmp_path / "checkpoints")] == ["10"]
    assert retention.read_best(tmp_path) is None
    first, other = run_folder.events(tmp_path, "fallback")
    assert (first["refused_step"], first["to_step"], first["steps_to_redo"]) == (30, 20, 10)
    assert first["reason"] == "step-000030/f differs in tensor 'w'" and other["to_step"] == 10
    # With nothing left the ranks are told so, and what was there stays.
    assert state.older(1, third, "damaged too") is None
    assert len(retention.committed(tmp_path / "checkpoints")) == 1


def test_skipped_steps_are_handed_to_the_next_attempt_and_to_the_next_driver(tmp_path: Path) -> None:
    state = RunState(config(), str(tmp_path), "run")
    assert dict(state.begin(1, PLAN, ("n",)).skipped) == {}
    record = {"reason": "the loss on rank 0 is not finite", "slots": [{"slot": 0, "rows": [1, 2]}], "known": False}
    state.rank_step(1, 0, report(1, float("nan"), record))
    state.faulted(1, {"kind": "rollback", "step": 2, "reason": "a spike", "slots": []})
    wanted = {1: "the loss on rank 0 is not finite", 2: "a spike"}
    assert dict(state.begin(1, PLAN, ("n",)).skipped) == wanted
    state.close()
    again = RunState(config(), str(tmp_path), "run")
    assert dict(again.begin(1, PLAN, ("n",)).skipped) == wanted
    (step,) = run_folder.events(tmp_path, "step")
    assert step["loss"] is None and step["loss_by_modality"] == {"text": None} and step["skipped"] == record
    assert "NaN" not in (tmp_path / "log.jsonl").read_text()


def test_checkpoints_since_copies_were_last_equal_do_not_count_after_corruption(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    state = RunState(config(), str(tmp_path), "run")
    event = {"kind": "corruption", "step": 32, "clean_step": 20, "reason": "rank 1: other bits of 'w'"}
    state.faulted(1, event)
    begun = state.begin(1, PLAN, ("n",))
    assert begun.point is not None and begun.point.step == 20 and dict(begun.skipped) == {}
