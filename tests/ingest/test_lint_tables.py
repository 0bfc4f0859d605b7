"""`lint` of tables: each row that ingestion would refuse, with its file and line, and nothing copied or decoded."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasmo.config import LimitsConfig, load
from elasmo.data.gold import GoldError
from elasmo.ingest.ingest import ingest
from elasmo.ingest.lint import lint
from elasmo.sources.contract import ContractError, load_contract
from tests.pets import CONTRACT, png

SAMPLE = {
    "table": "pets",
    "turns": [
        {"role": "user", "segments": [{"image": "picture"}, {"text": "Who is it?"}]},
        {"role": "assistant", "segments": [{"text": "{name}"}]},
    ],
}
COLUMNS = {"key": {"type": "string"}, "picture": {"type": "image"}, "name": {"type": "string"}}


def dataset(folder: Path, origin: dict[str, Any], columns: dict[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    tree = {**CONTRACT, "name": folder.name, "source": "tables", "modalities": ["image"]}
    tree |= {"tables": {"pets": {"columns": columns or COLUMNS}}, "from": {"pets": origin}, "samples": [SAMPLE]}
    (folder / "contract.yaml").write_text(yaml.safe_dump(tree))
    return folder


def told(folder: Path) -> list[str]:
    return [str(finding).removeprefix(f"{folder}/") for finding in lint(folder, LimitsConfig())]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = dataset(
        tmp_path / "pets",
        {"format": "csv", "path": "pets.csv"},
        {**COLUMNS, "age": {"type": "number", "min": 0, "max": 30}},
    )
    (made / "good.png").write_bytes(png(0))
    (made / "text.png").write_text("not a picture")
    return made


def test_rows_that_are_fit_have_no_finding(folder: Path) -> None:
    (folder / "pets.csv").write_text("key,picture,name,age\na,good.png,Ann,3\nb,good.png,Bob,4\n")
    assert told(folder) == []


def test_every_row_that_ingestion_would_refuse_is_named_with_its_line(folder: Path) -> None:
    lines = ["a,text.png,Ann,3", "b,good.png,Bob,NaN", "c,../x.png,Cy,5", "d,good.png,Dan,6", "d,good.png,Dora,7"]
    (folder / "pets.csv").write_text("\n".join(["key,picture,name,age", *lines]) + "\n")
    assert told(folder) == [
        "pets.csv:2: error: picture is no image that is read here; give PNG, JPEG, WEBP, GIF, BMP, TIFF.",
        "pets.csv:3: error: age is 'NaN'; it must be a number.",
        "pets.csv:4: error: picture is '../x.png', which leaves the folder of pets.csv; it must be relative, without "
        "..",
        "pets.csv:6: error: key 'd' is also that of pets.csv:5; keys are unique, give another one.",
    ]


def test_a_column_that_no_row_has_and_a_table_without_rows_are_the_contracts(folder: Path) -> None:
    (folder / "pets.csv").write_text("key,picture,age\na,good.png,3\n")
    assert any("no record of 'pets.csv' has column 'name'" in line for line in told(folder))
    (folder / "pets.csv").write_text("key,picture,name,age\n")
    assert told(folder) == ["contract.yaml: error: from.pets has no row; mend its path or its files."]
    (folder / "pets.csv").unlink()
    (finding,) = told(folder)
    assert finding.startswith("contract.yaml: error: from.pets.path") and "pets.csv" in finding


def test_a_database_is_reached_and_not_copied(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "pets", {"format": "sql", "url": "sqlite:///pets.db", "table": "pets", "key": "key"})
    with sqlite3.connect(folder / "pets.db") as database:
        database.execute("create table pets (key text, picture blob, name text)")
        database.execute("insert into pets values ('a', ?, 'Ann')", (png(0),))
    before = sorted(path.name for path in folder.rglob("*"))
    assert told(folder) == [] and sorted(path.name for path in folder.rglob("*")) == before
    dataset(folder, {"format": "sql", "url": "sqlite:///pets.db", "table": "dogs", "key": "key"})
    (finding,) = told(folder)
    assert finding.startswith("contract.yaml: error: from.pets") and "(no such table: dogs); mend the" in finding
    more = {**COLUMNS, "owner": {"type": "string"}}
    dataset(folder, {"format": "sql", "url": "sqlite:///pets.db", "table": "pets", "key": "key"}, more)
    (finding,) = told(folder)
    assert "has no column 'owner'; its columns are key, picture, name" in finding


def test_nothing_left_to_train_on_says_why(folder: Path, tmp_path: Path) -> None:
    config = load(overrides=[f"data.lake={tmp_path / 'lake'}", "data.vocab_size=300"], env={})
    (folder / "pets.csv").write_bytes(b"key,picture,name,age\na,good.png,Ren\xe9,3\n")
    with pytest.raises(
        GoldError, match=r"\(1 refused by silver, the first because pets.csv:2: name is not valid UTF-8"
    ):
        ingest(config, folder)
    (folder / "pets.csv").write_text("key,picture,name,age\n")
    with pytest.raises(GoldError, match=r"has no training sample left \(its sources have no row\); mend"):
        ingest(config, folder)


def test_a_broken_contract_is_one_line(folder: Path) -> None:
    with (folder / "contract.yaml").open("a") as file:
        file.write("  : : [\n")
    with pytest.raises(ContractError, match=r"contract\.yaml:\d+ is not valid YAML: [^\n]*\.$"):
        load_contract(folder)
    dataset(folder, {"path": "pets.csv"})
    with pytest.raises(ContractError, match=r"from\.pets\.format is missing; give one of parquet, csv,[^\n]*\.$"):
        load_contract(folder)
