"""Alignment: the right column for each declared one, by names and values; nothing applied unasked; comments kept."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from elasmo.cli.main import main
from elasmo.config import Config, LimitsConfig
from elasmo.data.gold import Gold
from elasmo.ingest.ingest import ingest
from elasmo.sources.align import Match, accept, propose
from elasmo.sources.check import Checks
from elasmo.sources.contract import Column, TableSpec, load_contract
from tests.pets import config, png  # noqa: F401

SPEC = TableSpec(
    columns={
        "key": Column(type="string"),
        "owner": Column(type="string"),
        "picture": Column(type="image"),
        "age": Column(type="number", min=0, max=40),
        "species": Column(type="category", categories=("cat", "dog", "fish")),
    }
)
CHECKS = Checks({}, LimitsConfig(), None)


def source_rows(count: int = 12) -> list[dict[str, Any]]:
    """Rows whose columns are named as another team would name them, and one that is nobody's."""
    kinds = ("cat", "dog", "fish")
    return [
        {
            "ID": f"p{n}",
            "petOwner": f"owner {n % 4}",
            "photo": png(n),
            "years": str(n % 9),
            "kind_of_animal": kinds[n % 3],
            "shelf": n * 1000,
        }
        for n in range(count)
    ]


def by_column(matches: list[Match]) -> dict[str, str | None]:
    return {match.column: match.source for match in matches}


def test_columns_are_found_by_values_where_names_are_unlike() -> None:
    found = by_column(propose(SPEC, CHECKS, source_rows()))
    assert found == {
        "key": "ID",
        "owner": "petOwner",
        "picture": "photo",
        "age": "years",
        "species": "kind_of_animal",
    }


def test_each_proposal_has_a_score_and_its_evidence() -> None:
    matches = {match.column: match for match in propose(SPEC, CHECKS, source_rows())}
    assert "12 of 12 values are a category as declared" in matches["species"].evidence
    assert "12 of 12 values are an image as declared" in matches["picture"].evidence
    assert "100% of the rows have a value of their own" in matches["key"].evidence
    assert all(0.5 <= match.score <= 1 and not match.named for match in matches.values())


def test_a_column_whose_values_do_not_fit_is_not_proposed_however_it_is_named() -> None:
    rows = [{"age": "unknown", "SPECIES": "mammal", "picture_": b"no picture"} for _ in range(5)]
    spec = TableSpec(columns={name: SPEC.columns[name] for name in ("key", "picture", "species")})
    found = by_column(propose(spec, CHECKS, rows))
    assert found["species"] is None and found["picture"] is None


def test_what_the_contract_says_already_stands() -> None:
    rows = [{**row, "owner": "x"} for row in source_rows()]
    matches = {m.column: m for m in propose(SPEC, CHECKS, rows, {"shelf": "age"})}
    assert (matches["age"].source, matches["age"].named) == ("shelf", True)
    assert (matches["owner"].source, matches["owner"].named) == ("owner", True)
    assert matches["species"].source == "kind_of_animal"


def test_no_source_column_is_given_twice() -> None:
    spec = TableSpec(
        columns={"key": Column(type="string"), "first": Column(type="number"), "last": Column(type="number")}
    )
    found = by_column(propose(spec, CHECKS, [{"id": f"r{n}", "first_number": n} for n in range(9)]))
    assert found["first"] == "first_number" and found["last"] is None


def test_a_source_without_rows_proposes_nothing_that_values_must_show() -> None:
    assert set(by_column(propose(SPEC, CHECKS, [])).values()) == {None}


CONTRACT = """\
# Pets of the shelter: keep this line.
name: shelter
title: Pets of a shelter
source: tables
licences:
  - {part: all, kind: real, licence: CC-BY-4.0, origin: "https://example.org"}  # and this
modalities: [image]
tables:
  pets:
    columns:
      key: {type: string}
      owner: {type: string}
      picture: {type: image}
      age: {type: number, min: 0, max: 40}
      species: {type: category, categories: [cat, dog, fish]}
from:
  pets: ORIGIN
splits:
  pets: {concept: owner, heldout_fraction: 0.3}
samples:
  - table: pets
    turns:
      - {role: user, segments: [{image: picture}, {text: "Which animal?"}]}
      - {role: assistant, segments: [{text: "{species}"}]}
"""


@pytest.fixture
def shelter(tmp_path: Path) -> Path:
    folder = tmp_path / "shelter"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(source_rows(30)), folder / "pets.parquet")
    (folder / "contract.yaml").write_text(CONTRACT.replace("ORIGIN", "{format: parquet, path: pets.parquet}"))
    return folder


def elasmo(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["elasmo", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0)


def test_accepted_proposals_stand_in_the_contract_and_the_dataset_is_ingested(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shelter: Path,
    config: Config,  # noqa: F811
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    before = (shelter / "contract.yaml").read_text()
    lake = f"data.lake={config.data.lake}"
    assert elasmo(monkeypatch, "align", str(shelter), lake) == 0
    assert "kind_of_animal" in capsys.readouterr().out
    assert (shelter / "contract.yaml").read_text() == before
    assert elasmo(monkeypatch, "align", str(shelter), lake, "--accept", "pets") == 0
    text = (shelter / "contract.yaml").read_text()
    assert "# Pets of the shelter: keep this line." in text and "# and this" in text
    assert yaml.safe_load(text)["from"]["pets"]["rename"]["photo"] == "picture"
    assert load_contract(shelter).origins["pets"].rename["kind_of_animal"] == "species"
    result = ingest(config, shelter)
    assert not result.refused and len(Gold.open(config.data.lake, shelter).index("train")) > 10
    assert (
        accept(shelter, "pets", propose(SPEC, CHECKS, source_rows(), load_contract(shelter).origins["pets"].rename))
        == 0
    )


def test_a_single_column_can_be_accepted_and_a_wrong_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shelter: Path
) -> None:
    assert elasmo(monkeypatch, "align", str(shelter), "--accept", "pets.age") == 0
    assert load_contract(shelter).origins["pets"].rename == {"years": "age"}
    assert elasmo(monkeypatch, "align", str(shelter), "--accept", "pets.agee") == 2
    assert "--accept 'pets.agee' is no table or table.column" in capsys.readouterr().err


def test_columns_of_a_database_are_aligned_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shelter: Path
) -> None:
    with sqlite3.connect(shelter / "pets.db") as database:
        database.execute("CREATE TABLE animals (ID TEXT, petOwner TEXT, photo BLOB, years REAL, kind_of_animal TEXT)")
        rows = [tuple(row.values())[:5] for row in source_rows(20)]
        database.executemany("INSERT INTO animals VALUES (?, ?, ?, ?, ?)", rows)
    origin = "{format: sql, url: 'sqlite:///pets.db', table: animals, key: ID}"
    (shelter / "contract.yaml").write_text(CONTRACT.replace("ORIGIN", origin))
    assert elasmo(monkeypatch, "align", str(shelter), "--accept", "pets") == 0
    rename = load_contract(shelter).origins["pets"].rename
    assert {"photo": "picture", "years": "age", "kind_of_animal": "species"}.items() <= rename.items()
