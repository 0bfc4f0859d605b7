"""Candidate keys, against what sets of rows say."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from elasmo.warehouse import find_keys as module
from elasmo.warehouse.find_keys import find_keys, is_unique
from tests.warehouse.relations import facts, relation


def test_keys_are_minimal_and_unique_as_sets_of_rows_say() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        columns = {
            name: generator.integers(0, size, 60).tolist() for name, size in zip("abcd", (8, 20, 60, 3), strict=True)
        }
        columns["e"] = generator.permutation(60).tolist() if generator.random() < 0.3 else [0] * 60
        found = {key.columns for key in find_keys(facts("t", columns))}
        single = {(c,) for c in columns if len(set(columns[c])) == 60}
        pairs = {
            pair
            for pair in combinations(columns, 2)
            if len(set(zip(columns[pair[0]], columns[pair[1]], strict=True))) == 60
            and not {(pair[0],), (pair[1],)} & single
        }
        assert found <= single | pairs and single <= found
        assert single or len(found) == min(module.KEPT, len(pairs))


def test_one_repeated_value_or_null_in_many_rows_is_found() -> None:
    values: list[int | None] = list(range(50_000))
    assert is_unique(facts("t", {"a": values}).relation, ["a"])
    for odd in (7, None):
        made = facts("t", {"a": [*values, odd]})
        assert not is_unique(made.relation, ["a"]) and find_keys(made) == []


def test_values_whose_hashes_collide_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    made = facts("t", {"a": [f"v{n}" for n in range(300)]})
    whole = module.hashed
    monkeypatch.setattr(module, "hashed", lambda *a: ((rows, h % np.uint64(2000)) for rows, h in whole(*a)))
    assert is_unique(made.relation, ["a"])
    assert not is_unique(facts("t", {"a": [f"v{n % 299}" for n in range(300)]}).relation, ["a"])


def test_an_identifier_is_preferred_to_what_is_unique_by_chance() -> None:
    moments = [f"2024-01-01 00:00:{n:02d}" for n in range(50)]
    found = find_keys(facts("t", {"at": moments, "name": [f"n{n}" for n in range(50)], "pet_id": list(range(50))}))
    assert [key.columns for key in found] == [("pet_id",), ("name",), ("at",)]
    assert "called as identifiers are" in found[0].evidence and "times differ by chance" in found[2].evidence


def test_a_pair_says_how_likely_it_is_by_chance() -> None:
    generator = np.random.default_rng(1)
    columns = {"order_no": [n // 4 for n in range(400)], "line_no": [n % 4 for n in range(400)]}
    columns["noise"] = generator.integers(0, 200, 400).tolist()
    best = find_keys(facts("t", columns))[0]
    assert best.columns == ("order_no", "line_no") and "200 pairs of rows would agree by chance" in best.evidence


def test_rows_that_repeat_have_no_key() -> None:
    assert find_keys(facts("t", {"a": [1, 1, 2], "b": ["x", "x", "y"]})) == []
    assert find_keys(facts("t", {"a": []})) == []
    assert relation("t", {"a": [1]}).rows == 1
