"""What is near what does not depend on the order in which rows came."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from elasmo.data.draft import Ref
from elasmo.ingest.near_rows import Near, NearFound, NearRows
from elasmo.sources.silver_rules import NearRules
from tests.content.test_near import clustered


def pictures(table: str, hashes: list[int]) -> dict[Ref, Any]:
    return {Ref(table, f"{number:03d}", "png"): value for number, value in enumerate(hashes)}


def test_any_order_of_rows_gives_the_same_marks_and_leaks() -> None:
    rows = list(pictures("scans", clustered(200, 3).tolist()).items())
    splits = {ref.row: {"heldout" if int(ref.key) % 5 == 0 else "train"} for ref, _ in rows}
    outcomes = []
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        near = NearRows(NearRules())
        outcomes.append((near.find("image", dict(rows)), near.found(splits)))
    marks, found = outcomes[0]
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert len(marks) == found["image"].near > 20 and found["image"].leaked > 5
    assert all(near.row.key < ref.key and near.distance <= 4 for ref, near in marks.items())


def test_a_row_is_near_one_of_an_earlier_table_but_texts_are_not_near_pictures() -> None:
    near = NearRows(NearRules())
    near.find("image", pictures("first", [5, 1 << 40]))
    text = np.zeros(128, dtype=np.uint32)
    assert near.find("text", {Ref("notes", "a", "note"): text}) == {}
    assert near.find("image", pictures("second", [7])) == {
        Ref("second", "000", "png"): Near(Ref("first", "000", "png"), 1.0)
    }


def test_what_is_left_out_is_near_nothing_any_more() -> None:
    near = NearRows(NearRules())
    (left_out,) = near.find("image", pictures("scans", [0, 1]))
    near.forget("image", {left_out.row})
    found = near.found({Ref("scans", "000"): {"train"}, Ref("scans", "001"): {"heldout"}})["image"]
    assert (found.compared, found.near, found.left_out, found.heldout, found.leaked) == (2, 1, 1, 0, 0)


def test_counts_come_back_from_json() -> None:
    found = NearFound(9, 2, 0, 3, 1, (("a/1", "a/2", 2.0),))
    assert NearFound.from_json(found.to_json()) == found
