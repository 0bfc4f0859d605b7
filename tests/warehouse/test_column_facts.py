"""Sketches of columns against exact counts."""

from __future__ import annotations

import numpy as np
import pytest

from elasmo.warehouse.column_facts import SAMPLE_ROWS, SKETCH
from tests.warehouse.relations import facts


def test_distinct_values_are_counted_exactly_below_the_sketch_and_nearly_above() -> None:
    generator = np.random.default_rng(0)
    many = generator.integers(0, 10**12, 60_000)
    made = facts("t", {"few": many % 3001, "many": many, "text": [f"v{n % 50_000}" for n in range(60_000)]}, 7000)
    assert made.columns["few"].distinct == len(set((many % 3001).tolist()))
    assert made.columns["many"].distinct == pytest.approx(len(set(many.tolist())), rel=4 / SKETCH**0.5)
    assert made.columns["text"].distinct == pytest.approx(50_000, rel=4 / SKETCH**0.5)
    assert (made.columns["many"].low, made.columns["many"].high) == (many.min(), many.max())
    assert made.sample.num_rows == SAMPLE_ROWS


def test_a_sketch_never_denies_an_inclusion_and_denies_nearly_all_others() -> None:
    generator = np.random.default_rng(1)
    keys = [f"k{n}" for n in range(40_000)]
    inside = facts("a", {"c": [keys[n] for n in generator.integers(0, 40_000, 30_000)]}).columns["c"]
    outside = facts("a", {"c": [f"k{n}" for n in generator.integers(20_000, 60_000, 30_000)]}).columns["c"]
    key = facts("b", {"k": keys}).columns["k"]
    assert inside.may_be_in(key) and not outside.may_be_in(key) and not key.may_be_in(inside)


def test_measurements_and_long_texts_name_nothing() -> None:
    made = facts(
        "t", {"x": [0.5, 1.5], "long": ["a" * 100, "b" * 100], "day": ["2024-01-01", "2024-01-02"], "n": [1, 2]}
    )
    assert [name for name, column in made.columns.items() if column.may_name] == ["day", "n"]
