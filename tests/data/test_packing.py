"""Packing: caps hold, every row has one slot, few slots, even slots."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasmo.data.packing import Caps, PackingError, pack
from elasmo.data.plan import StepPlan, step_receipt
from tests.data.test_plan import make_index


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 60),
    st.integers(1, 8),
    st.sampled_from(((True, False), (False, True), (True, True))),
)
def test_caps_hold_and_every_row_is_in_one_slot(seed: int, rows: int, fewest: int, capped: tuple[bool, bool]) -> None:
    costs = np.random.default_rng(seed).integers(0, 100, (rows, 4)).astype(float)
    decoder, encoders = capped
    caps = Caps(120 if decoder else None, 350 if encoders else None)
    groups = pack(costs, costs / 50, fewest, caps)
    assert sorted(row for group in groups for row in group) == list(range(rows))
    assert all(groups) and len(groups) >= min(rows, fewest)
    for group in groups:
        assert not decoder or costs[group, 0].sum() <= 120
        assert not encoders or costs[group, 1:].sum() <= 350


def test_no_more_slots_than_best_fit_decreasing_promises() -> None:
    random = np.random.default_rng(3)
    for _ in range(40):
        # Rows cut from full slots: the fewest possible number of slots is known.
        fewest = int(random.integers(2, 12))
        cuts = [
            np.diff(np.sort(np.r_[0, random.integers(1, 100, int(random.integers(1, 6))), 100])) for _ in range(fewest)
        ]
        sizes = np.concatenate(cuts).astype(float)
        costs = np.zeros((len(sizes), 4))
        costs[:, 0] = sizes
        groups = pack(costs, costs / 20, 1, Caps(decoder=100))
        assert fewest <= len(groups) <= 11 / 9 * fewest + 1


def test_slots_with_room_to_spare_are_even() -> None:
    costs = np.random.default_rng(0).lognormal(3, 1, (64, 4))
    groups = pack(costs, costs / costs.mean(axis=0), 4, Caps(decoder=10_000))
    loads = np.array([costs[group].sum(axis=0) for group in groups])
    assert len(groups) == 4
    assert (loads.max(axis=0) / loads.mean(axis=0)).max() < 1.2


def test_a_plan_under_caps_reads_the_same_rows_on_any_number_of_ranks() -> None:
    index = make_index(300, seed=4)
    capped, free = StepPlan(index, 0, 24, 8, caps=Caps(100, 200)), StepPlan(index, 0, 24, 8)
    more = 0
    for step in range(40):
        slots = capped.slots(step)
        assert sorted(row for slot in slots for row in slot.rows) == sorted(free.rows(step).tolist())
        assert capped.target_tokens(step) == free.target_tokens(step)
        for slot in slots:
            assert index.costs[list(slot.rows), 0].sum() <= 100 and index.costs[list(slot.rows), 1:].sum() <= 200
        for world in (1, 2, 5):
            ranks = capped.assign(step, world)
            assert {slot for rank in ranks for slot in rank} == set(slots)
            assert max(map(len, ranks)) == capped.micro_steps(step, world)
        assert capped.receipt(step) == step_receipt([slot.digest() for slot in slots])
        more += len(slots) > 3
    assert more > 20


def test_a_row_over_a_cap_is_named_with_the_mend() -> None:
    index = dataclasses.replace(make_index(5), costs=np.array([[1, 2, 3, 4]] * 4 + [[9, 2, 3, 30]]))
    row = index.row_ids[4]
    with pytest.raises(PackingError, match=rf"slot_tokens=8, but row {row} alone has 9 decoder tokens \(1 rows"):
        StepPlan(index, 0, 4, 2, caps=Caps(decoder=8))
    with pytest.raises(PackingError, match=rf"slot_encoder_tokens=9, but row {row} alone has 35 encoder tokens"):
        StepPlan(index, 0, 4, 2, caps=Caps(encoders=9))
