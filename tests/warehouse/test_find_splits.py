"""Dimensions inside tables, against dependencies counted row by row."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

from elasmo.warehouse.find_splits import dependencies, find_splits
from tests.warehouse.relations import facts
from tests.warehouse.shop import CITIES

FOREVER = math.inf


def orders(rows: int = 1200) -> dict[str, list[Any]]:
    generator = np.random.default_rng(0)
    cities = [list(CITIES)[n] for n in generator.integers(0, len(CITIES), rows)]
    return {
        "order_id": list(range(rows)),
        "city": cities,
        "country": [CITIES[city][0] for city in cities],
        "continent": [CITIES[city][1] for city in cities],
        "colour": [f"colour {n}" for n in generator.integers(0, 5, rows)],
        "amount": generator.normal(0, 1, rows).tolist(),
    }


def splits(columns: dict[str, list[Any]], **changes: Any) -> dict[str, tuple[str, ...]]:
    made, _ = find_splits(facts("orders", columns, 500), changes.get("keys", {"order_id"}), (), FOREVER)
    return {split.key: split.columns for split in made}


def test_a_chain_becomes_a_chain_of_dimensions() -> None:
    assert splits(orders()) == {"city": ("country",), "country": ("continent",)}


def test_they_are_the_dependencies_that_counting_rows_finds() -> None:
    columns = orders()
    made = dependencies(facts("orders", columns, 500), {"order_id"}, set(), FOREVER)
    names = [name for name in columns if name not in ("order_id", "amount")]
    expected = {
        (left, right)
        for left in names
        for right in [*names, "amount"]
        if left != right and len(set(columns[left])) == len(set(zip(columns[left], columns[right], strict=True)))
    }
    assert {(left, right) for left, rights in made.decides.items() for right in rights} == expected


@pytest.mark.parametrize("row", [3, 1199])
def test_one_row_that_differs_breaks_it_even_outside_of_the_sample(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasmo.warehouse.column_facts.SAMPLE_ROWS", 300)
    columns = orders()
    columns["country"][row] = "Atlantis"
    assert splits(columns).get("city") != ("country",)
    assert "country" not in {column for moved in splits(columns).values() for column in moved}


def test_a_null_decides_nothing_but_may_be_decided() -> None:
    columns = orders()
    nowhere = [None if n % 50 == 0 else city for n, city in enumerate(columns["city"])]
    assert "country" not in splits({**columns, "city": nowhere}).get("city", ())
    peru = [None if country == "Peru" else country for country in columns["country"]]
    assert splits({**columns, "country": peru, "continent": ["x"] * 1200}) == {"city": ("country",)}


def test_of_two_names_of_one_thing_the_identifier_is_the_key() -> None:
    columns = orders()
    ids = {city: 40 + n for n, city in enumerate(CITIES)}
    columns = {**columns, "city_id": [ids[city] for city in columns["city"]]}
    assert splits(columns) == {"city_id": ("city", "country"), "country": ("continent",)}


def test_what_chance_explains_is_no_dependency() -> None:
    generator = np.random.default_rng(1)
    rare = [n == 17 for n in range(400)]
    many = [f"v{n}" for n in generator.integers(0, 190, 400)]
    assert splits({"order_id": list(range(400)), "many": many, "rare": [str(flag) for flag in rare]}) == {}


def test_a_measured_number_decides_nothing() -> None:
    quantity = np.random.default_rng(2).integers(1, 9, 600)
    columns = {"order_id": list(range(600)), "quantity": quantity.tolist(), "discount": (quantity // 3 / 10).tolist()}
    assert splits(columns) == {}


def test_when_time_is_up_it_says_what_was_not_searched() -> None:
    made, missed = find_splits(facts("orders", orders()), {"order_id"}, (), time.monotonic() - 1)
    assert made == [] and missed == ("city", "country", "continent", "colour")


def test_a_wide_table_is_searched_in_seconds() -> None:
    generator = np.random.default_rng(3)
    base = generator.integers(0, 50, 20_000)
    columns: dict[str, Any] = {f"c{n}": [f"v{x}" for x in generator.integers(0, 40, 20_000)] for n in range(150)}
    columns["place"] = [f"p{x}" for x in base]
    columns["region"] = [f"r{x % 7}" for x in base]
    known = facts("wide", columns, 20_000)
    began = time.process_time()
    made, missed = find_splits(known, (), (), FOREVER)
    assert [(split.key, split.columns) for split in made] == [("place", ("region",))] and not missed
    assert time.process_time() - began < 20
