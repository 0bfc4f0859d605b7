"""Reading a run log: what counts after a resize, what a crash leaves, where the wall clock went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasmo.measure.run_log import RunLogError, parse, read


def lines(*events: dict[str, Any]) -> list[str]:
    return [json.dumps(event) + "\n" for event in events]


def step(number: int, time: float, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {"event": "step", "step": number, "time": time, "attempt": attempt, **more}


def test_the_last_attempt_of_a_step_counts() -> None:
    log = parse(
        lines(
            step(1, 1.0, loss=3.0), step(2, 2.0, loss=2.0), step(3, 3.0, loss=1.9),
            step(2, 9.0, attempt=2, loss=2.5), step(3, 10.0, attempt=2, loss=1.5), step(4, 11.0, attempt=2, loss=1.0),
        )
    )  # fmt: skip
    assert [(s.step, s.attempt, s.loss) for s in log.steps] == [(1, 1, 3.0), (2, 2, 2.5), (3, 2, 1.5), (4, 2, 1.0)]
    assert [(s.step, s.attempt) for s in log.redone] == [(2, 1), (3, 1)]


@given(st.lists(st.integers(1, 12), max_size=60))
def test_no_step_event_is_lost_or_counted_twice(numbers: list[int]) -> None:
    log = parse(lines(*(step(number, time=float(at)) for at, number in enumerate(numbers))))
    assert [s.step for s in log.steps] == sorted(set(numbers))
    assert sorted(s.time for s in (*log.steps, *log.redone)) == list(range(len(numbers)))
    for kept in log.steps:
        assert kept.time == max(at for at, number in enumerate(numbers) if number == kept.step)


def test_evaluations_and_checkpoints_repeat_like_steps() -> None:
    log = parse(
        lines(
            {"event": "eval", "step": 100, "accuracy": {"image": 0.5}},
            {"event": "checkpoint", "step": 100, "bytes": 1},
            {"event": "eval", "step": 100, "accuracy": {"image": 0.75}},
            {"event": "checkpoint", "step": 100, "bytes": 2},
        )
    )
    assert [dict(e.accuracy) for e in log.evaluations] == [{"image": 0.75}]
    assert [c.bytes for c in log.checkpoints] == [2]


def test_a_line_cut_short_is_numbered_and_left_out() -> None:
    whole = lines(step(1, 1.0), step(2, 2.0))
    log = parse([whole[0], '{"event": "step", "st', whole[1], "", '{"ev'])
    assert [s.step for s in log.steps] == [1, 2]
    assert log.unreadable == (2, 5)


def test_unknown_events_and_keys_are_left_out() -> None:
    log = parse([*lines({"event": "weather", "sky": "blue"}, step(1, 1.0, colour="red")), "[1, 2]\n"])
    assert (len(log.steps), log.unreadable) == (1, ())


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"event": "step", "step": 1}, "lacks 'time'"),
        ({"event": "step", "time": 1.0}, "lacks 'step'"),
        ({"event": "step", "step": "one", "time": 1.0}, "step is 'one', not a number"),
        ({"event": "step", "step": 1, "time": 1.0, "seconds": 3}, "seconds is 3, not an object"),
        ({"event": "resize"}, "lacks 'attempt'"),
    ],
)
def test_an_unusable_event_is_refused_by_line(event: dict[str, Any], says: str) -> None:
    with pytest.raises(RunLogError, match="line 2") as refused:
        parse(lines(step(1, 1.0), event))
    assert says in str(refused.value)


def test_nulls_are_unknown_not_zero() -> None:
    log = parse(
        lines(
            step(1, 1.0, grad_norm=None, loss_by_modality={"image": 0.5, "audio": None}),
            {"event": "resize", "attempt": 2, "seconds": {"detect": 1.5, "start": None}},
        )
    )
    assert log.steps[0].grad_norm != log.steps[0].grad_norm  # not a number
    assert dict(log.steps[0].loss_by_modality) == {"image": 0.5}
    assert dict(log.resizes[0].seconds) == {"detect": 1.5}


def test_goodput_accounts_for_the_whole_wall_clock() -> None:
    """10 s start, steps of 2 s, 5 s recovery besides its first step, which is a step like any other."""
    log = parse(
        lines(
            {"event": "attempt", "attempt": 1, "time": 100.0},
            step(1, 112.0, seconds={"step": 2.0}),
            step(2, 114.0, seconds={"step": 2.0}),
            {"event": "resize", "attempt": 2, "seconds": {"detect": 1, "restore": 4, "first_step": 2, "total": 7}},
            step(2, 121.0, attempt=2, seconds={"step": 2.0}),
            step(3, 123.0, attempt=2, seconds={"step": 2.0}),
            {"event": "eval", "step": 3, "time": 126.0, "seconds": 3.0},
            {"event": "checkpoint", "step": 3, "time": 127.0, "seconds": 1.0},
        )
    )
    goodput = log.goodput
    assert (goodput.wall, goodput.kept, goodput.redone, goodput.recovery) == (27.0, 6.0, 2.0, 5.0)
    assert (goodput.evaluation, goodput.checkpoints) == (3.0, 1.0)
    assert goodput.other == pytest.approx(10.0)
    assert goodput.fraction == pytest.approx(6 / 27)


def test_an_empty_log_has_no_goodput_and_no_modalities() -> None:
    log = parse([])
    assert (log.goodput.fraction, log.goodput.other, log.modalities) == (0.0, 0.0, ())


def test_modalities_come_in_order_of_appearance() -> None:
    log = parse(
        lines(step(1, 1.0, loss_by_modality={"table": 1}), step(2, 2.0, loss_by_modality={"audio": 1, "table": 1}))
    )
    assert log.modalities == ("table", "audio")


def test_a_missing_log_is_refused_by_path(tmp_path: Path) -> None:
    with pytest.raises(RunLogError, match=r"log\.jsonl does not exist"):
        read(tmp_path / "log.jsonl")
