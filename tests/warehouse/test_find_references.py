"""References between tables: what is included by chance is none, and what a few values break is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasmo.warehouse.column_facts import TableFacts
from elasmo.warehouse.find_keys import find_keys
from elasmo.warehouse.find_references import Reference, find_references
from tests.warehouse.relations import facts


def found(**tables: Mapping[str, Any]) -> tuple[list[str], list[Reference]]:
    known: dict[str, TableFacts] = {name: facts(name, columns) for name, columns in tables.items()}
    kept, broken = find_references(known, {name: find_keys(table) for name, table in known.items()})
    return sorted(map(str, kept)), broken


PEOPLE = {"id": list(range(1, 101)), "name": [f"n{n % 60}" for n in range(100)]}


def test_small_numbers_inside_a_running_number_are_no_reference() -> None:
    kept, _ = found(
        people=PEOPLE, visits={"key": [f"v{n}" for n in range(300)], "rooms": [1 + n % 5 for n in range(300)]}
    )
    assert kept == []


def test_names_and_inclusion_make_a_reference_and_nulls_refer_to_nothing() -> None:
    who = [None if n % 10 == 0 else 1 + n % 100 for n in range(300)]
    for name in ("person_id", "people_id", "peopleId"):
        kept, broken = found(people=PEOPLE, visits={"key": [f"v{n}" for n in range(300)], name: who})
        assert kept == ([f"visits({name}) -> people(id)"] if name != "person_id" else kept) and broken == []


def test_a_reference_that_a_few_values_break_is_told_and_not_proposed() -> None:
    who = [1 + n % 100 for n in range(300)]
    who[7] = 999
    kept, (broken,) = found(people=PEOPLE, visits={"key": [f"v{n}" for n in range(300)], "people_id": who})
    assert kept == [] and (broken.orphans, broken.values) == (1, 300)
    assert broken.evidence[-1] == "1 of 300 values are no keys"


def test_a_row_may_refer_to_another_of_its_table_but_tables_not_in_a_circle() -> None:
    codes = [f"c{n}" for n in range(80)]
    tree = {"code": codes, "parent_code": [None, *codes[:-1]]}
    kept, _ = found(nodes=tree)
    assert kept == ["nodes(parent_code) -> nodes(code)"]
    a = {"a_code": codes, "b_code": codes[::-1]}
    kept, _ = found(a=a, b={"b_code": codes, "a_code": codes[::-1]})
    assert kept == ["a(a_code) -> b(a_code)", "a(b_code) -> b(b_code)"]


def test_a_pair_of_columns_refers_to_a_pair() -> None:
    grid = {"store_no": [n // 10 for n in range(200)], "shelf_no": [n % 10 for n in range(200)], "depth": [0.5] * 200}
    stock = {"key": [f"s{n}" for n in range(600)], "store_no": [n % 20 for n in range(600)]}
    stock["shelf_no"] = [n // 20 % 10 for n in range(600)]
    kept, _ = found(shelves=grid, stock=stock)
    assert kept == ["stock(store_no, shelf_no) -> shelves(store_no, shelf_no)"]
    shorter = {name: values[:-1] for name, values in grid.items()}
    kept, (broken,) = found(shelves=shorter, stock=stock)
    assert kept == [] and broken.orphans == 3


def test_texts_and_numbers_are_not_compared() -> None:
    kept, _ = found(
        people={"id": [f"{n:03d}" for n in range(100)], "x": [0.5] * 100},
        visits={"key": [f"v{n}" for n in range(300)], "people_id": [n % 100 for n in range(300)]},
    )
    assert kept == []
