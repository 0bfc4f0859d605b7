from __future__ import annotations

from itertools import pairwise

import pytest

from elasmo.simulate.plan import PlanError, Schedule
from elasmo.simulate.schedule import Event, order, run, step_seconds


def even(schedule: Schedule, ranks: int, chunks: int, m: int, send: float = 0.0) -> float:
    return run(schedule, ranks, chunks, m, lambda *_: 1 / chunks, lambda *_: 2 / chunks, send).end_s


@pytest.mark.parametrize(("ranks", "m"), [(2, 2), (4, 4), (4, 16), (8, 9)])
def test_gpipe_and_1f1b_wait_for_p_minus_1_of_m_plus_p_minus_1(ranks: int, m: int) -> None:
    """Huang et al. 2019; Narayanan et al. 2021, section 2.2: bubble (p - 1)(f + b)."""
    for schedule in ("gpipe", "1f1b"):
        assert even(schedule, ranks, 1, m) == pytest.approx(3 * (m + ranks - 1))  # type: ignore[arg-type]


@pytest.mark.parametrize(("ranks", "chunks", "m"), [(4, 2, 8), (4, 4, 16), (8, 3, 64)])
def test_interleaving_divides_the_bubble_by_the_chunks(ranks: int, chunks: int, m: int) -> None:
    """Narayanan et al. 2021, section 2.2: bubble (p - 1)(f + b) / v."""
    assert even("interleaved", ranks, chunks, m) == pytest.approx(3 * m + 3 * (ranks - 1) / chunks)


def test_zero_bubble_waits_for_a_third() -> None:
    """Qi et al. 2024, table 1, ZB-H1: (p - 1)(f + b - w) with f = b = w."""
    made = run("zero-bubble", 4, 1, 12, lambda *_: 1.0, lambda *_: 1.0, weight=lambda *_: 1.0)
    assert made.end_s == pytest.approx(3 * 12 + 3)


@pytest.mark.parametrize(
    ("schedule", "ranks", "chunks", "m"), [("1f1b", 4, 1, 12), ("interleaved", 4, 2, 12), ("gpipe", 3, 1, 5)]
)
def test_every_pass_runs_once_after_its_inputs(schedule: Schedule, ranks: int, chunks: int, m: int) -> None:
    made = run(schedule, ranks, chunks, m, lambda s, i: 1.0 + 0.1 * s + 0.01 * i, lambda s, i: 2.0, 0.25)
    seen = {(event.kind, event.stage, event.micro_batch): event for event in made.events}
    assert len(seen) == len(made.events) == 2 * ranks * chunks * m
    for (kind, stage, i), event in seen.items():
        before: Event | None = None
        if kind == "F" and stage:
            before = seen["F", stage - 1, i]
        if kind == "B":
            before = seen["B", stage + 1, i] if stage < ranks * chunks - 1 else seen["F", stage, i]
        assert before is None or event.start_s >= before.end_s
    for rank in range(ranks):
        own = sorted((e for e in made.events if e.rank == rank), key=lambda e: e.start_s)
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(own))


def test_a_slow_micro_batch_shows_in_the_bubble_of_other_ranks() -> None:
    slow = run("1f1b", 4, 1, 8, lambda s, i: 5.0 if (s, i) == (3, 3) else 1.0, lambda *_: 2.0)
    assert slow.end_s > even("1f1b", 4, 1, 8) + 3
    assert min(slow.bubble_s) < max(slow.bubble_s)


@pytest.mark.parametrize(
    ("schedule", "ranks", "chunks", "m"), [("1f1b", 8, 1, 32), ("interleaved", 8, 3, 64), ("gpipe", 4, 1, 8)]
)
def test_the_closed_form_is_the_played_schedule(schedule: Schedule, ranks: int, chunks: int, m: int) -> None:
    forward = [1.0 / chunks] * (ranks * chunks)
    got = step_seconds(schedule, ranks, chunks, m, forward, [2 * f for f in forward], 0.0)
    assert got == pytest.approx(even(schedule, ranks, chunks, m), rel=0.01)


def test_interleaving_refuses_micro_batches_that_do_not_fill_its_rounds() -> None:
    with pytest.raises(PlanError, match="micro-batches that pp=4 divides, not 6"):
        even("interleaved", 4, 2, 6)


def test_an_order_has_as_many_forward_as_backward_passes() -> None:
    passes = order("interleaved", 4, 2, 8, 1)
    assert sum(kind == "F" for kind, _, _ in passes) == sum(kind == "B" for kind, _, _ in passes) == 16
