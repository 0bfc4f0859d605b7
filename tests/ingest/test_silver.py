"""Splits: whole concepts, a fixed function of names, followed by dependent tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasmo.config import LimitsConfig
from elasmo.data.draft import Draft, Ref
from elasmo.ingest.bronze import write_bronze
from elasmo.ingest.silver import Silver, followed_first, write_silver
from elasmo.ingest.silver_rows import heldout_by_hash
from elasmo.sources.contract import Column, Contract, ContractError, SplitRule, TableSpec
from elasmo.sources.quarantine import RowError, read_quarantine
from elasmo.sources.source import Row, SilverRows, landed_columns
from tests.pets import CONTRACT, png

STRING = Column(type="string")
PHOTOS = TableSpec(columns={"key": STRING, "owner": STRING, "png": Column(type="image")}, unique=("png",))
NOTES = TableSpec(columns={"key": STRING, "photo": STRING, "record": Column(type="record")})
TABLES = {"notes": NOTES, "photos": PHOTOS}
SPLITS = {
    "notes": SplitRule(follows="photo", of="photos"),
    "photos": SplitRule(concept="owner", heldout=("ann",), heldout_fraction=0.3),
}


class Rows:
    """A source of the given rows."""

    tables, splits = TABLES, SPLITS

    def __init__(self, rows: list[tuple[str, Row]]) -> None:
        self.rows = rows

    def describe(self) -> dict[str, dict[str, str]]:
        return {"files": {}, "inputs": {}}

    def landed(self, table: str) -> dict[str, bool]:
        return landed_columns(TABLES[table])

    def land(self) -> Iterator[tuple[str, Row]]:
        yield from self.rows

    def parse(self, table: str, row: Row) -> Row:
        return row

    def drafts(self, silver: SilverRows) -> Iterator[Draft]:
        yield from ()


def refine(lake: Path, rows: list[tuple[str, Row]]) -> tuple[Silver, dict[str, str]]:
    """Silver of the rows, and the reasons of the refused ones by key."""
    contract, source = Contract.model_validate(CONTRACT), Rows(rows)
    bronze = write_bronze(lake, contract, source, source.describe())
    snapshot = write_silver(lake, bronze, contract, source, LimitsConfig())
    refused = read_quarantine(lake, "pets", snapshot.details["quarantine"])
    return Silver(snapshot, source), {refusal.key: refusal.reason for refusal in refused}


def photo(number: int, owner: str, **changes: Any) -> tuple[str, Row]:
    return "photos", {"key": f"p{number}", "owner": owner, "png": png(number), **changes}


def note(number: int, photo_key: str, age: int = 3) -> tuple[str, Row]:
    return "notes", {"key": f"n{number}", "photo": photo_key, "record": {"age": age}}


def test_a_concept_is_on_one_side_and_about_the_share_asked_for_is_held_out(tmp_path: Path) -> None:
    silver, refused = refine(tmp_path, [photo(n, f"owner-{n % 100}") for n in range(300)])
    sides: dict[str, set[str]] = {}
    for row in silver.rows("photos"):
        sides.setdefault(row["concept"], set()).add(row["split"])
    assert not refused and all(len(side) == 1 for side in sides.values())
    assert 0.15 < sum(side == {"heldout"} for side in sides.values()) / 100 < 0.45


def test_the_split_of_a_concept_does_not_depend_on_other_rows(tmp_path: Path) -> None:
    few, _ = refine(tmp_path / "few", [photo(n, f"owner-{n}") for n in range(10, 20)])
    many, _ = refine(tmp_path / "many", [photo(n, f"owner-{n}") for n in reversed(range(40))])
    assert all(many.place(ref) == place for ref, place in few.places.items())


def test_listed_concepts_are_held_out(tmp_path: Path) -> None:
    silver, _ = refine(tmp_path, [photo(1, "ann"), photo(2, "ann")])
    assert {row["split"] for row in silver.rows("photos")} == {"heldout"}


def test_a_following_row_takes_split_and_concept_and_falls_with_its_leader(tmp_path: Path) -> None:
    rows = [photo(1, "ann"), photo(2, "bob", png=b"broken"), note(1, "p1"), note(2, "p2"), note(3, "p9")]
    silver, refused = refine(tmp_path, rows)
    assert silver.place(Ref("notes", "n1")) == ("heldout", "ann")
    assert sorted(refused) == ["n2", "n3", "p2"]
    assert "photos/p2, which was refused or never landed" in refused["n2"]


def test_exact_duplicates_are_kept_once(tmp_path: Path) -> None:
    rows = [photo(1, "bob"), photo(2, "eve", png=png(1)), photo(1, "eve", png=png(3))]
    silver, refused = refine(tmp_path, rows)
    assert [row["key"] for row in silver.rows("photos")] == ["p1"]
    assert "png is the same as in row 'p1'" in refused["p2"] and "key is the same as in row 'p1'" in refused["p1"]


def test_media_are_found_by_reference_and_left_out_of_rows(tmp_path: Path) -> None:
    silver, _ = refine(tmp_path, [photo(1, "bob"), note(1, "p1", age=7)])
    assert silver.content(Ref("photos", "p1")) == png(1)
    assert silver.content(Ref("notes", "n1")) == {"age": 7, "coat": None}
    assert "png" not in silver.rows("photos")[0]
    with pytest.raises(RowError, match="photos/p9 is not in silver"):
        silver.place(Ref("photos", "p9"))


def test_a_circle_of_following_tables_is_refused() -> None:
    circle = {"notes": SplitRule(follows="photo", of="photos"), "photos": SplitRule(follows="owner", of="notes")}
    assert followed_first(TABLES, SPLITS) == ["photos", "notes"]
    with pytest.raises(ContractError, match="in a circle"):
        followed_first(TABLES, circle)


def test_the_hash_split_is_frozen() -> None:
    """Concepts keep their side over versions: these were drawn once and must never change."""
    names = "".join("H" if heldout_by_hash("scans", f"writing-{n:04d}", 0.2) else "t" for n in range(24))
    assert names == "tttttttttHtttHttttHHtttt"
