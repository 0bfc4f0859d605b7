"""Mixtures: weights hold in tokens, counts are exact, and a change of weights moves nobody's place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasmo.data.index import GoldIndex, Source
from elasmo.data.mixture import MixtureSchedule, until, weight_at
from elasmo.data.plan import StepPlan


def mixture_index(sizes: list[tuple[int, int]], seed: int = 0) -> GoldIndex:
    """Sources of (rows, mean decoder tokens) each."""
    random = np.random.default_rng(seed)
    first = np.cumsum([0, *(rows for rows, _ in sizes)])
    total = int(first[-1])
    tokens = np.concatenate([random.integers(1, 2 * mean, rows) for rows, mean in sizes])
    return GoldIndex(
        snapshot="mix",
        row_ids=np.concatenate([np.arange(rows) + (n << 40) for n, (rows, _) in enumerate(sizes)]),
        shard=np.concatenate([(np.arange(rows) // 20).astype(np.int32) for rows, _ in sizes]),
        modalities=("text",),
        modality=np.zeros(total, dtype=np.int8),
        costs=np.stack([tokens, *([np.zeros(total, dtype=np.int64)] * 3)], axis=1),
        target_tokens=np.ones(total, dtype=np.int32),
        sources=tuple(Source(f"s{n}", f"snap{n}", int(first[n]), rows) for n, (rows, _) in enumerate(sizes)),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.5, 5000), st.floats(0.001, 100)), min_size=1, max_size=6),
    st.integers(1, 64),
    st.integers(0, 300),
)
def test_counts_are_never_negative_and_fill_the_batch(
    sources: list[tuple[float, float]], batch: int, step: int
) -> None:
    schedule = MixtureSchedule([mean for mean, _ in sources], [{0: weight} for _, weight in sources], batch)
    counts = schedule.counts(step)
    assert min(counts) >= 0
    assert sum(counts) == batch
    assert sum(schedule.drawn(step)) == step * batch
    shares = np.array([weight / mean for mean, weight in sources])
    drawn, wanted = np.array(schedule.drawn(step + 1)), shares / shares.sum() * (step + 1) * batch
    assert np.abs(drawn - wanted).max() < len(sources) + 1


def test_weights_hold_in_tokens_under_a_hundredfold_skew_of_sizes() -> None:
    """ray-project/ray's `Dataset.mix` weighs rows: with rows of unlike size the tokens are not what was asked for."""
    index = mixture_index([(20_000, 10), (200, 1000)])
    plan = StepPlan(index, 0, 64, 16, weights=({0: 0.95}, {0: 0.05}))
    tokens = np.zeros(2)
    for step in range(1500):
        rows = plan.rows(step)
        large = rows >= index.sources[1].first
        tokens += [index.costs[rows[~large], 0].sum(), index.costs[rows[large], 0].sum()]
    assert tokens[1] / tokens.sum() == pytest.approx(0.05, rel=0.01)
    by_rows = np.array([0.95 * 10, 0.05 * 1000])
    assert by_rows[1] / by_rows.sum() > 0.8  # the control: what weights in rows would have given


def test_a_source_that_joins_or_changes_weight_mid_run_repeats_no_row() -> None:
    """NVIDIA/Megatron-LM#725: a blend changed on resume restarts the sources that were there."""
    index = mixture_index([(900, 10), (700, 10), (500, 10)])
    before = StepPlan(index, 0, 12, 4, weights=({0: 1.0}, {0: 1.0}, {}))
    after = StepPlan(index, 0, 12, 4, weights=({0: 1.0, 20: 0.5, 40: 0.0}, {0: 1.0}, {20: 1.0}))
    for step in range(20):
        assert np.array_equal(before.rows(step), after.rows(step))
    read = np.concatenate([after.rows(step) for step in range(60)])
    assert len(set(read)) == len(read)  # no source has come to the end of its first epoch
    for number, source in enumerate(index.sources):
        mine = read[(read >= source.first) & (read < source.first + source.rows)] - source.first
        assert np.array_equal(mine, after._orders[number].take(0, len(mine)))  # in its own order, from its own start
    late = np.concatenate([after.rows(step) for step in range(40, 60)])
    assert not (late < 900).any()


def test_each_source_has_epochs_of_its_own() -> None:
    index = mixture_index([(30, 5), (400, 5)])
    plan = StepPlan(index, 0, 10, 5, weights=({0: 1.0}, {0: 1.0}))
    read = np.concatenate([plan.rows(step) for step in range(60)])
    small = read[read < 30]
    assert len(small) > 60
    for epoch in range(len(small) // 30):
        assert sorted(small[epoch * 30 : (epoch + 1) * 30]) == list(range(30))


def test_a_step_far_ahead_is_found_from_the_phases() -> None:
    index = mixture_index([(900, 10), (700, 40)])
    weights = ({0: 1.0, 1_000_000: 3.0}, {0: 2.0, 500_000: 0.1})
    plan = StepPlan(index, 0, 12, 4, weights=weights)
    assert len(plan.mixture.phases) == 3
    assert sum(plan.mixture.drawn(10**9)) == 12 * 10**9
    assert len(plan.rows(10**9)) == 12


def test_impossible_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="every weight is 0 from step 7 on"):
        MixtureSchedule([1, 1], [{0: 1.0, 7: 0.0}, {0: 0.0}], 4)
    with pytest.raises(ValueError, match=r"from step 3 on is -1\.0"):
        MixtureSchedule([1, 1], [{0: 1.0, 3: -1.0}, {0: 1.0}], 4)
    with pytest.raises(ValueError, match="1 weights for 2 sources"):
        StepPlan(mixture_index([(9, 3), (9, 3)]), 0, 4, 2, weights=({0: 1.0},))


def test_weights_by_step() -> None:
    weights = {0: 1.0, 10: 0.25}
    assert [weight_at(weights, step) for step in (0, 9, 10, 99)] == [1.0, 1.0, 0.25, 0.25]
    assert weight_at({5: 1.0}, 4) == 0
    assert until(weights, 10) == [[0, 1.0]]
    assert until(weights, 11) == [[0, 1.0], [10, 0.25]]
