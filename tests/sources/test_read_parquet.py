"""Parquet: a broken file is a sentence, an empty one is no row, and values of every type land as text."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasmo.sources.source import SourceError
from tests.sources.twelve import bronze, contract, landed, png, rows, twelve

ORIGIN = {"format": "parquet", "path": "*.parquet"}


def write(folder: Path, name: str, records: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(records), folder / name)
    return contract(folder, ORIGIN)


def test_an_empty_shard_holds_no_row(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", "a.parquet", twelve())
    pq.write_table(pa.Table.from_pylist(twelve()).slice(0, 0), folder / "b.parquet")
    assert rows(bronze(folder)) == landed()


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "page"])
def test_a_broken_file_is_a_sentence_that_names_it(tmp_path: Path, damage: str) -> None:
    folder = write(tmp_path / "pets", "a.parquet", twelve())
    write(folder, "b.parquet", twelve())
    content = (folder / "b.parquet").read_bytes()
    page = content[:4] + bytes(500) + content[504:]
    bad = {"cut": content[:-50], "text": b"not a table", "empty": b"", "page": page}[damage]
    (folder / "b.parquet").write_bytes(bad)
    with pytest.raises(
        SourceError, match=r"^b\.parquet is not a Parquet file that can be read \(.*\); restore the file"
    ):
        bronze(folder)


def test_a_column_that_no_row_has_is_named_with_those_there_are(tmp_path: Path) -> None:
    records = [{**row, "image": row["picture"]} for row in twelve()]
    for record in records:
        del record["picture"]
    folder = write(tmp_path / "pets", "a.parquet", records)
    with pytest.raises(
        SourceError, match=r"no record of '\*\.parquet' has column 'picture'; columns are key, caption, "
    ):
        bronze(folder)
    assert rows(bronze(contract(folder, {**ORIGIN, "rename": {"image": "picture"}}))) == landed()


def test_values_of_every_type_land_as_text(tmp_path: Path) -> None:
    values = {
        "time": datetime.datetime(2024, 3, 1, 12, 30),
        "day": datetime.date(2024, 3, 1),
        "price": Decimal("1.50"),
        "flag": True,
        "list": ["a", {"b": 1.5}["b"].__str__()],
        "struct": {"x": 1, "day": datetime.date(2024, 3, 1)},
        "bytes": "ü".encode(),
        "none": None,
    }
    folder = tmp_path / "pets"
    write(folder, "a.parquet", [{"key": "a", **values}])
    columns = {name: {"type": "string", "nullable": True} for name in ("key", *values)}
    columns["key"] = {"type": "string"}
    samples = [{"table": "pets", "turns": [{"role": r, "segments": [{"text": "?"}]} for r in ("user", "assistant")]}]
    contract(folder, ORIGIN, tables={"pets": {"columns": columns}}, samples=samples)
    assert rows(bronze(folder)) == [
        {
            "key": "a",
            "time": "2024-03-01T12:30:00",
            "day": "2024-03-01",
            "price": "1.50",
            "flag": "true",
            "list": '["a", "1.5"]',
            "struct": '{"x": 1, "day": "2024-03-01"}',
            "bytes": "ü",
            "none": None,
        }
    ]


def test_media_may_be_named_by_path_or_held_as_hugging_face_does(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    folder.mkdir()
    (folder / "one.png").write_bytes(png(0))
    write(folder, "a.parquet", [{**twelve()[0], "picture": "one.png"}])
    write(folder, "b.parquet", [{**twelve()[1], "picture": {"bytes": png(1), "path": "gone.png"}}])
    snapshot = bronze(folder)
    assert rows(snapshot) == landed()[:2]
    assert sorted(snapshot.details["files"]) == ["a.parquet", "b.parquet", "contract.yaml", "one.png"]
