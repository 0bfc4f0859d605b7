"""The ledger: a step is committed once, by the attempt that is alive, and a resize states what it cost."""

from __future__ import annotations

from typing import Any

import pytest

from elasmo.data.plan import step_receipt
from elasmo.train.ledger import Ledger, RankStep, Restored

PLAN = {"dp": 2, "global_batch": 8, "micro_batch": 4, "slots": 2, "parameters": 10}


def report(step: int, slots: dict[int, str], loss: float = 2.0, tokens: int = 4, load: int = 10) -> RankStep:
    return RankStep(
        step=step,
        digests=slots,
        loss_sum={"image": loss},
        target_tokens={"image": tokens},
        seconds={"step": 0.5 * tokens, "data_wait": 0.1},
        tokens={"decoder": load},
        lr=0.1,
        grad_norm=1.0,
    )


def two_ranks(ledger: Ledger, number: int, step: int, now: float) -> list[dict[str, Any]]:
    events = ledger.rank_step(now, number, 1, report(step, {1: f"b{step}"}, loss=6.0, tokens=6, load=30))
    return events + ledger.rank_step(now, number, 0, report(step, {0: f"a{step}"}))


def test_a_step_is_committed_when_the_last_rank_reports_it() -> None:
    ledger = Ledger()
    ledger.begin(0.0, 2, 0, PLAN, ("n0", "n1"))
    assert ledger.rank_step(1.0, 1, 1, report(1, {1: "b"})) == []
    assert ledger.committed == 0
    (event,) = ledger.rank_step(1.1, 1, 0, report(1, {0: "a"}))
    assert ledger.committed == 1
    assert event["receipt"] == step_receipt(["a", "b"]) == ledger.receipts[1]


def test_a_step_event_adds_up_over_ranks_and_takes_the_slowest() -> None:
    ledger = Ledger()
    ledger.begin(0.0, 2, 0, PLAN, ("n0", "n1"))
    (event,) = two_ranks(ledger, 1, 1, 1.0)
    assert event["loss"] == pytest.approx(8.0 / 10)
    assert event["seconds"]["step"] == 3.0
    assert event["balance"]["decoder"] == pytest.approx(30 / 20)
    assert event["tokens"] == 40


def test_late_reports_of_a_dead_attempt_change_nothing() -> None:
    ledger = Ledger()
    ledger.begin(0.0, 2, 0, PLAN, ("n0", "n1"))
    ledger.rank_step(1.0, 1, 0, report(1, {0: "a"}))
    ledger.begin(5.0, 1, 0, {**PLAN, "dp": 1}, ("n0",))
    assert ledger.rank_step(5.1, 1, 1, report(1, {1: "b"})) == []
    assert ledger.committed == 0


def test_a_resize_states_phases_steps_redone_and_samples_returned() -> None:
    ledger = Ledger()
    ledger.begin(0.0, 2, 0, PLAN, ("n0", "n1"))
    for step in range(1, 6):
        two_ranks(ledger, 1, step, float(step))
    ledger.fault_injected(5.5, "node n1")
    ledger.failed(7.0, "lost the worker of rank 1", ("rank 1",))
    ledger.failed(7.5, "again")
    ledger.group_started(9.0)
    ledger.begin(10.0, 1, 3, {**PLAN, "dp": 1}, ("n0",))
    ledger.restored(10.5, 2, Restored(1234, "memory", 0.001))
    events = ledger.rank_step(11.0, 2, 0, report(4, {0: "a4", 1: "b4"}))
    resize, step = events
    assert resize["event"] == "resize" and step["event"] == "step"
    assert resize["steps_redone"] == 2
    assert resize["samples_returned"] == 16
    assert (resize["from_world"], resize["to_world"]) == (2, 1)
    assert resize["lost"] == "node n1, rank 1" and resize["reason"] == "lost the worker of rank 1"
    assert resize["seconds"] == {
        "detect": 1.5, "replan": 2.0, "start": 1.0, "restore": 0.5, "first_step": 0.5, "total": 5.5
    }  # fmt: skip
    assert resize["bytes_read"] == 1234


def test_detection_is_counted_from_the_last_commit_when_nobody_knows_the_fault() -> None:
    ledger = Ledger()
    ledger.begin(0.0, 2, 0, PLAN, ("n0", "n1"))
    two_ranks(ledger, 1, 1, 1.0)
    ledger.failed(4.0, "lost the worker of rank 1", ("rank 1",))
    ledger.begin(6.0, 1, 1, {**PLAN, "dp": 1}, ("n0",))
    (resize, _) = ledger.rank_step(7.0, 2, 0, report(2, {0: "a", 1: "b"}))
    assert resize["measured_from"] == "last committed step"
    assert resize["seconds"]["detect"] == 3.0
    assert resize["seconds"]["replan"] is None
    assert resize["seconds"]["total"] == 6.0
    assert resize["steps_redone"] == 0


def test_a_second_resize_does_not_inherit_the_first_ones_times() -> None:
    ledger = Ledger()
    ledger.begin(0.0, 2, 0, PLAN, ("n0", "n1"))
    two_ranks(ledger, 1, 1, 1.0)
    ledger.fault_injected(1.5, "node n1")
    ledger.failed(2.0, "lost")
    ledger.begin(3.0, 2, 1, PLAN, ("n0", "n2"))
    two_ranks(ledger, 2, 2, 4.0)
    ledger.failed(9.0, "lost again")
    ledger.begin(10.0, 2, 2, PLAN, ("n0", "n3"))
    resize = two_ranks(ledger, 3, 3, 11.0)[0]
    assert resize["measured_from"] == "last committed step"
    assert resize["seconds"]["detect"] == 5.0


def test_a_resize_that_fell_back_names_the_refused_checkpoint_and_redoes_more() -> None:
    ledger = Ledger()
    ledger.begin(0.0, 2, 0, PLAN, ("n0", "n1"))
    for step in range(1, 6):
        two_ranks(ledger, 1, step, float(step))
    ledger.begin(10.0, 2, 4, PLAN, ("n0", "n1"))
    event = ledger.fell_back(2, 4, "a flipped byte in tensor 'w'", 2)
    assert (event["refused_step"], event["to_step"], event["steps_to_redo"]) == (4, 2, 3)
    ledger.restored(10.5, 2, Restored(99, "storage", 0.1))
    resize, step = two_ranks(ledger, 2, 3, 12.0)
    assert (resize["restored_step"], resize["steps_redone"], resize["samples_returned"]) == (2, 3, 24)
    assert resize["refused_checkpoints"] == [{"step": 4, "reason": "a flipped byte in tensor 'w'"}]
    assert step["step"] == 3


def test_an_attempt_tells_when_its_processes_started() -> None:
    ledger = Ledger()
    ledger.group_started(3.0)
    assert ledger.begin(10.0, 2, 0, PLAN, ("n0", "n1"))["started"] == 3.0
    two_ranks(ledger, 1, 1, 12.0)
    assert "started" not in ledger.begin(20.0, 1, 1, PLAN, ("n0",))  # the controller has not told
