"""The step plan: exactly once, any world size, any resume point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasmo.data.index import GoldIndex, Source
from elasmo.data.plan import StepPlan, slot_digest, step_receipt


def make_index(rows: int, shard_rows: int = 13, seed: int = 0) -> GoldIndex:
    random = np.random.default_rng(seed)
    return GoldIndex(
        snapshot=f"snapshot-{rows}",
        row_ids=np.arange(rows, dtype=np.int64) * 7 + 100,
        shard=(np.arange(rows) // shard_rows).astype(np.int32),
        modalities=("image", "audio"),
        modality=(np.arange(rows) % 2).astype(np.int8),
        costs=random.integers(0, 40, size=(rows, 4)).astype(np.int32),
        target_tokens=random.integers(1, 5, size=rows).astype(np.int32),
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 90), st.integers(1, 6), st.integers(1, 5), st.integers(0, 3))
def test_every_epoch_reads_each_row_exactly_once_and_tails_carry_over(
    rows: int, slots: int, micro: int, seed: int
) -> None:
    plan = StepPlan(make_index(rows), seed, slots * micro, micro, window_shards=2)
    steps = -(-2 * rows // (slots * micro))
    read = np.concatenate([plan.rows(step) for step in range(steps)])
    assert sorted(read[:rows]) == list(range(rows))
    assert sorted(read[rows : 2 * rows]) == list(range(rows))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_world_size_changes_who_computes_a_slot_and_nothing_else(world: int) -> None:
    plan = StepPlan(make_index(101), 3, 16, 4)
    for step in (0, 6, 30):
        ranks = plan.assign(step, world)
        assert sorted(slot.slot for rank in ranks for slot in rank) == [0, 1, 2, 3]
        assert {slot for rank in ranks for slot in rank} == set(plan.slots(step))
        assert max(len(rank) for rank in ranks) == plan.micro_steps(step, world)


def test_a_step_is_found_without_the_steps_before_it() -> None:
    fresh, walked = (StepPlan(make_index(500), 1, 20, 5) for _ in range(2))
    for step in range(90):
        walked.slots(step)
    assert fresh.slots(90) == walked.slots(90)


def test_order_depends_on_seed_and_snapshot() -> None:
    index = make_index(300)
    first = StepPlan(index, 0, 30, 10).rows(0)
    assert not np.array_equal(first, StepPlan(index, 1, 30, 10).rows(0))
    assert not np.array_equal(first, StepPlan(make_index(301), 0, 30, 10).rows(0))
    assert np.array_equal(first, StepPlan(make_index(300), 0, 30, 10).rows(0))


def test_a_window_touches_few_shards() -> None:
    index = make_index(1000, shard_rows=50)
    plan = StepPlan(index, 0, 40, 10, window_shards=4)
    assert len(set(index.shard[plan.rows(0)])) <= 4


def test_receipt_tells_a_missing_repeated_or_swapped_row() -> None:
    plan = StepPlan(make_index(60), 0, 12, 4)
    slots = plan.slots(2)
    assert step_receipt([slot_digest(s.step, s.slot, s.row_ids) for s in slots]) == plan.receipt(2)
    rows = list(slots[0].row_ids)
    for damaged in (rows[:-1], [*rows[:-1], rows[0]], rows[::-1]):
        digests = [slot_digest(2, 0, damaged), *(slot.digest() for slot in slots[1:])]
        assert step_receipt(digests) != plan.receipt(2)


def test_target_tokens_are_those_of_the_global_batch() -> None:
    plan = StepPlan(make_index(50), 0, 10, 5)
    assert plan.target_tokens(3) == int(plan.index.target_tokens[plan.rows(3)].sum())


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(ValueError, match="has no row"):
        StepPlan(make_index(0), 0, 4, 2)


def test_a_source_that_joins_leaves_the_slots_of_past_steps_as_they_were() -> None:
    """Its rows, however heavy, must not move rows of steps that are committed from one slot to another."""
    alone = make_index(60)
    costs = np.concatenate([alone.costs, np.full((40, 4), (5, 900, 0, 70))])
    sources = (Source("a", "a", 0, 60), Source("b", "b", 60, 40))
    both = GoldIndex(
        "both",
        np.arange(100),
        np.concatenate([alone.shard, np.full(40, int(alone.shard[-1]) + 1, np.int32)]),
        alone.modalities,
        np.concatenate([alone.modality, np.zeros(40, np.int8)]),
        costs,
        np.concatenate([alone.target_tokens, np.ones(40, np.int64)]),
        sources,
    )
    one = GoldIndex("a", np.arange(60), *(getattr(alone, name) for name in FIELDS), sources=(Source("a", "a", 0, 60),))
    before = StepPlan(one, 0, 12, 3)
    after = StepPlan(both, 0, 12, 3, weights=({0: 1.0, 6: 0.5}, {6: 0.5}))
    assert [before.slots(step) for step in range(6)] == [after.slots(step) for step in range(6)]
    assert any(row >= 60 for slot in after.slots(6) for row in slot.row_ids)


FIELDS = ("shard", "modalities", "modality", "costs", "target_tokens")
