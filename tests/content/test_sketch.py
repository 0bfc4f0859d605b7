"""Merging the summaries of parts against the summary of the whole, and both against numpy."""

from __future__ import annotations

import json
from itertools import chain

import datasketches
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasmo.content.sketch import DISTINCT_ERROR, KLL_K, MIX_VALUES, RANK_ERROR, Distinct, Mix, Numbers

RANKS = [0.01, 0.25, 0.5, 0.75, 0.99]


@given(st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=40), min_size=1, max_size=5))
def test_numbers_of_parts_are_exactly_those_of_the_whole_while_they_are_few(parts: list[list[int]]) -> None:
    whole = Numbers.of(np.array([*chain(*parts)], dtype=np.int64))
    merged = Numbers()
    for part in parts:
        merged = merged.merge(Numbers.of(np.array(part, dtype=np.int64)))
    assert (merged.count, merged.minimum, merged.maximum) == (whole.count, whole.minimum, whole.maximum)
    assert merged.quantiles(RANKS) == whole.quantiles(RANKS)
    assert merged.total == pytest.approx(whole.total, rel=1e-9, abs=1e5)


def test_many_numbers_merge_within_the_rank_error() -> None:
    values = np.random.default_rng(0).lognormal(size=40 * KLL_K)
    merged = Numbers()
    for part in np.array_split(values, 7):
        merged = merged.merge(Numbers.of(part))
    ordered = np.sort(values)
    for numbers in (merged, Numbers.of(values)):
        found = np.searchsorted(ordered, numbers.quantiles(RANKS)) / len(values)
        assert found == pytest.approx(RANKS, abs=RANK_ERROR)
    assert (merged.minimum, merged.maximum) == (values.min(), values.max())
    assert merged.mean == pytest.approx(values.mean())


def test_numbers_that_are_not_finite_are_counted_and_in_nothing_else() -> None:
    numbers = Numbers.of(np.array([np.nan, 1.0, np.inf])).merge(Numbers.of(np.array([np.nan])))
    assert (numbers.count, numbers.not_finite, numbers.minimum, numbers.maximum, numbers.mean) == (1, 3, 1.0, 1.0, 1.0)
    assert Numbers.of(np.array([])).quantiles([0.5]) == [] and Numbers().mean is None


def test_a_sum_beyond_the_doubles_is_unknown_and_the_rest_stands() -> None:
    huge = Numbers.of(np.array([1e308, 1e308]))
    for numbers in (huge, Numbers.of(np.array([1e308])).merge(Numbers.of(np.array([1e308]))), huge.merge(Numbers())):
        assert (numbers.count, numbers.mean, numbers.maximum) == (2, None, 1e308)
    assert json.dumps(huge.to_json(), allow_nan=False)


def test_the_stated_rank_error_is_the_library_s() -> None:
    sketch = datasketches.kll_doubles_sketch(KLL_K)
    assert sketch.normalized_rank_error(True) <= RANK_ERROR < 1.01 * sketch.normalized_rank_error(True)


def test_shares_close_their_bins_above() -> None:
    assert Numbers.of(np.array([1, 2, 2, 3])).shares([1, 2]).tolist() == [0.25, 0.5, 0.25]


def test_large_integers_keep_every_digit_of_minimum_and_maximum() -> None:
    assert Numbers.of(np.array([2**62 + 1, -(2**62) - 1])).maximum == 2**62 + 1


@pytest.mark.parametrize("count", [0, 1, 100, 30_000])
def test_distinct_counts_merge_within_four_standard_errors(count: int) -> None:
    names = [f"name {number}" for number in range(count)]
    parts = Distinct.of(names[: count * 2 // 3]).merge(Distinct.of(names[count // 3 :]))
    for distinct in (parts, Distinct.of(names)):
        assert distinct.estimate() == pytest.approx(count, rel=4 * DISTINCT_ERROR)


def test_a_mix_is_exact_or_not_at_all_however_it_is_merged() -> None:
    assert Mix.of(["b", "a"]).merge(Mix.of(["a"])) == Mix.of(["a", "a", "b"]) == Mix({"a": 2, "b": 1})
    halves = Mix.of(range(MIX_VALUES)), Mix.of(range(MIX_VALUES, MIX_VALUES + 1))
    assert halves[0].counts and halves[0].merge(halves[1]).counts is None
    assert Mix.of(["x" * 101]).counts is None and Mix(None).merge(Mix()).counts is None


def test_summaries_survive_json() -> None:
    for made in (Numbers.of(np.arange(1000)), Numbers(), Distinct.of(["a"]), Distinct(), Mix.of(["a"]), Mix(None)):
        assert type(made).from_json(json.loads(json.dumps(made.to_json()))) == made
