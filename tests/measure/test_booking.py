"""Every rank-second is booked once: by hand on small logs, and as a sum on any."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasmo.measure.booking import KINDS, book
from elasmo.measure.run_log import RunLog, parse
from elasmo.measure.verdict import slow_ranks, verdict


def log_of(*events: dict[str, Any]) -> RunLog:
    return parse(map(json.dumps, events))


def attempt(time: float, number: int = 1, world: int = 2, **plan: Any) -> dict[str, Any]:
    return {"event": "attempt", "time": time, "attempt": number, "world": world, "plan": plan}


def step(time: float, number: int, *ranks: dict[str, float], of: int = 1, seconds: float = 2.0) -> dict[str, Any]:
    told = [{"rank": rank, **parts} for rank, parts in enumerate(ranks)]
    head = {"event": "step", "time": time, "step": number, "attempt": of, "world": len(ranks) or 2}
    return {**head, "tokens": 100, "seconds": {"step": seconds}, "per_rank": told}


EVEN = {"compute": 1.5, "data_wait": 0.1, "communication": 0.3, "other": 0.1}


def test_a_run_by_hand() -> None:
    late = {"compute": 0.9, "data_wait": 0.1, "communication": 0.9, "other": 0.1}
    log = log_of(
        attempt(100.0),
        step(105.0, 1, EVEN, EVEN),  # 3 s of start-up before it
        {"event": "eval", "time": 106.0, "step": 1, "seconds": 0.5},  # half a second idle before it
        step(108.0, 2, EVEN, late),
        step(110.0, 3, EVEN, EVEN),  # done again later
        attempt(116.0, 2),  # 6 s without a group
        step(120.0, 3, EVEN, EVEN, of=2),  # 2 s until it begins
    )
    booking = book(log)
    assert booking.wall_s == 20.0 and booking.total == pytest.approx(40.0) and booking.ranks == 2.0
    assert booking.seconds == pytest.approx(
        {
            "useful": 5 * 1.5 + 0.9,
            "data stall": 6 * 0.1,
            "imbalance": 0.6,
            "bubble": 0.0,
            "communication": 5 * 0.3 + 0.3,
            "other work": 6 * 0.1,
            "evaluation": 1.0,
            "checkpoint": 0.0,
            "redone": 4.0,
            "recovery": 2 * 6.0 + 2 * 2.0,
            "start-up": 6.0,
            "idle": 1.0,
        }
    )


def test_a_checkpoint_stalls_the_ranks_after_its_step_and_is_waited_for_at_the_end() -> None:
    def saved(time: float, number: int, seconds: float) -> dict[str, Any]:
        return {"event": "checkpoint", "time": time, "step": number, "seconds": seconds}

    log = log_of(
        attempt(98.0),
        step(100.0, 1, EVEN, EVEN),
        {"event": "eval", "time": 101.0, "step": 1, "seconds": 1.0},
        saved(103.5, 1, 0.75),  # written on a thread, long after the ranks went on
        step(104.0, 2, EVEN, EVEN),  # a second since the evaluation, of which 0.75 were the copy
        step(106.0, 3, EVEN, EVEN),
        saved(107.5, 3, 0.5),
    )
    seconds = book(log).seconds
    assert seconds["checkpoint"] == pytest.approx(2 * (0.75 + 1.5)) and seconds["idle"] == pytest.approx(2 * 0.25)


def test_devices_are_held_from_the_start_of_their_processes() -> None:
    """Of a run's first group; what a later one needs to start is recovery already."""
    log = log_of(
        {**attempt(100.0), "started": 70.0},
        step(102.0, 1, EVEN, EVEN),
        {**attempt(116.0, 2), "started": 108.0},
        step(118.0, 2, EVEN, EVEN, of=2),
    )
    booking = book(log)
    assert booking.wall_s == 48.0 == log.goodput.wall and booking.total == pytest.approx(96.0)
    assert booking.seconds["start-up"] == pytest.approx(60.0) and booking.seconds["recovery"] == pytest.approx(28.0)


def test_stages_wait_in_a_bubble() -> None:
    early = {"compute": 1.0, "communication": 1.0}
    booking = book(log_of(attempt(8.0, pp=2), step(10.0, 1, {"compute": 2.0, "communication": 0.0}, early)))
    assert booking.seconds["bubble"] == pytest.approx(1.0) and booking.seconds["imbalance"] == 0.0


def test_nobody_holds_devices_between_two_drivers() -> None:
    log = log_of(
        attempt(100.0),
        step(102.0, 1, EVEN, EVEN),
        attempt(5000.0),  # the run is taken up by another driver, which numbers anew
        step(5002.0, 2, EVEN, EVEN),
    )
    assert book(log).wall_s == 4.0


def test_a_log_without_steps_or_attempts() -> None:
    assert book(log_of(attempt(100.0))).total == 0.0
    assert book(log_of(step(10.0, 1, EVEN, EVEN))).total == pytest.approx(4.0)


PART = st.floats(0, 3)
RANK = st.fixed_dictionaries({"compute": PART, "data_wait": PART, "communication": PART, "other": PART})


@given(st.data())
def test_the_sums_equal_the_total_whatever_the_clocks_say(data: st.DataObject) -> None:
    time, events, spans = 100.0, [], []
    for number in range(1, data.draw(st.integers(1, 3)) + 1):
        world = data.draw(st.integers(1, 3))
        time += data.draw(st.floats(0.001, 5))
        spans.append((time, world))
        events.append(attempt(time, number, world))
        for index in range(data.draw(st.integers(1, 4))):
            time += data.draw(st.floats(0.001, 5))
            ranks = [data.draw(RANK) for _ in range(world)]
            events.append(step(time, index + 1, *ranks, of=number, seconds=data.draw(st.floats(0, 9))))
            if data.draw(st.booleans()):
                time += data.draw(st.floats(0.001, 2))
                events.append({"event": "eval", "time": time, "step": index + 1, "seconds": data.draw(st.floats(0, 3))})
            if data.draw(st.booleans()):
                saved = {"event": "checkpoint", "time": time, "step": index + 1}
                events.append({**saved, "seconds": data.draw(st.floats(0, 3))})
    log = log_of(*events)
    booking = book(log)
    first = min([spans[0][0]] + [item.time - item.seconds["step"] for item in (*log.steps, *log.redone)])
    begins = [first, *(begin for begin, _ in spans[1:]), time]
    total = sum((begins[at + 1] - begins[at]) * world for at, (_, world) in enumerate(spans))
    assert booking.total == pytest.approx(total, rel=1e-9, abs=1e-9)
    assert booking.wall_s == pytest.approx(time - first)
    assert set(booking.seconds) == set(KINDS) and all(value >= -1e-9 for value in booking.seconds.values())


def test_the_verdict_names_the_largest_loss_and_what_to_change() -> None:
    starved = {"compute": 1.0, "data_wait": 0.9, "communication": 0.05, "other": 0.05}
    log = log_of(attempt(0.001), *(step(2.0 * n, n, starved, starved) for n in range(1, 20)))
    told = verdict(book(log), {"data": {"decode_workers": 1}})
    assert told.startswith("45% data-bound") and "raise data.decode_workers (now 1)" in told
    busy = {"compute": 1.97, "data_wait": 0.01, "communication": 0.01, "other": 0.01}
    log = log_of(attempt(0.001), *(step(2.0 * n, n, busy, busy) for n in range(1, 20)))
    assert verdict(book(log)) == "compute-bound: no loss takes 5 % of the time"
    assert verdict(book(log_of())) == "no step was committed"


def test_a_rank_that_computes_half_as_long_again_is_slow() -> None:
    slow, fast = {"compute": 1.5, "communication": 0.0}, {"compute": 1.0, "communication": 0.5}
    events = [step(2.0 * n, n, fast, fast, slow, fast) for n in range(1, 12)]
    assert slow_ranks(log_of(attempt(0.001, world=4), *events)) == {2: 1.5}
    assert slow_ranks(log_of(attempt(0.001, world=4), *events[:5])) == {}
