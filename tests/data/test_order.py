"""The walk over one source: every row once an epoch, any stretch without the rest."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from elasmo.data.order import ShardOrder


def order(rows: int, shard_rows: int = 7, window: int = 3, snapshot: str = "a", seed: int = 0) -> ShardOrder:
    return ShardOrder(snapshot, seed, (np.arange(rows) // shard_rows).astype(np.int32), window)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 80), st.integers(1, 9), st.integers(1, 5))
def test_every_epoch_has_each_row_once(rows: int, shard_rows: int, window: int) -> None:
    walk = order(rows, shard_rows, window)
    for epoch in range(3):
        assert sorted(walk.take(epoch * rows, rows)) == list(range(rows))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 60), st.integers(0, 200), st.integers(0, 150))
def test_a_stretch_is_the_same_whole_or_row_by_row(rows: int, first: int, count: int) -> None:
    walk = order(rows)
    assert walk.take(first, count).tolist() == [int(order(rows).take(first + i, 1)[0]) for i in range(count)]


def test_epochs_snapshots_and_seeds_have_orders_of_their_own() -> None:
    first = order(60).take(0, 60)
    for other in (order(60).take(60, 60), order(60, snapshot="b").take(0, 60), order(60, seed=1).take(0, 60)):
        assert not np.array_equal(first, other)


def test_a_place_in_a_far_epoch_is_found_from_its_own_epoch_alone() -> None:
    walk = order(10_000, shard_rows=100, window=4)
    shuffles: list[tuple[int, int]] = []
    make = walk._make_shuffled
    walk._shuffled = lambda epoch, window: (shuffles.append((epoch, window)), make(epoch, window))[1]  # type: ignore[assignment]
    walk.take(10_000 * 5_000_000 + 1234, 16)
    assert {epoch for epoch, _ in shuffles} == {5_000_000}
    assert len(shuffles) <= 2
