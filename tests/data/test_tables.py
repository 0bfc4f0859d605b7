"""Every format lands the same twelve rows alike, and a `tables` dataset goes all the way to gold."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasmo.data.gold import Gold
from tests.data import twelve
from tests.data.twelve import bronze, contract, ingested, landed, rows

SHARDS = Path(__file__).parent / "shards"


def parquet(folder: Path) -> dict[str, Any]:
    pq.write_table(pa.Table.from_pylist(twelve.twelve()[:7]), folder / "a.parquet")
    pq.write_table(pa.Table.from_pylist(twelve.twelve()[7:]), folder / "b.parquet")
    return {"format": "parquet", "path": "*.parquet"}


def arrow(folder: Path) -> dict[str, Any]:
    table = pa.Table.from_pylist(twelve.twelve())
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as file:
        file.write_table(table[:5])
    with pa.ipc.new_stream(folder / "b.arrow", table.schema) as stream:
        stream.write_table(table[5:], max_chunksize=3)
    return {"format": "arrow", "path": "."}


def with_paths(folder: Path) -> list[dict[str, Any]]:
    (folder / "media").mkdir()
    for row in twelve.twelve():
        (folder / f"media/{row['key']}.png").write_bytes(row["picture"])
    return [{**row, "picture": f"media/{row['key']}.png"} for row in twelve.twelve()]


def csv_file(folder: Path) -> dict[str, Any]:
    with open(folder / "rows.csv", "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(twelve.COLUMNS))
        writer.writeheader()
        writer.writerows(with_paths(folder))
    return {"format": "csv", "path": "rows.csv"}


def jsonl(folder: Path) -> dict[str, Any]:
    (folder / "rows.jsonl").write_text("\n\n".join(json.dumps(row) for row in with_paths(folder)))
    return {"format": "jsonl", "path": "rows.jsonl"}


def media_folder(folder: Path) -> dict[str, Any]:
    for row in twelve.twelve():
        place = folder / "pets" / row["species"]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{row['key']}.PNG").write_bytes(row["picture"])
        (place / f"{row['key']}.txt").write_text(row["caption"])
        (place / f"{row['key']}.json").write_text(json.dumps({n: row[n] for n in ("key", "number", "species")}))
    return {"format": "folder", "path": "pets", "rename": {"png": "picture", "txt": "caption"}}


def webdataset(folder: Path) -> dict[str, Any]:
    write_tar(folder / "a.tar", [parts(row) for row in twelve.twelve()[:6]])
    write_tar(folder / "b.tar.gz", [parts(row) for row in twelve.twelve()[6:]])
    return {
        "format": "webdataset",
        "path": ".",
        "rename": {"__key__": "key", "png": "picture", "txt": "caption", "cls": "species"},
    }


def parts(row: dict[str, Any]) -> dict[str, bytes]:
    texts = {"txt": row["caption"], "cls": row["species"], "json": json.dumps({"number": row["number"]})}
    return {f"{row['key']}.png": row["picture"], **{f"{row['key']}.{e}": t.encode() for e, t in texts.items()}}


def write_tar(path: Path, records: list[dict[str, bytes]]) -> None:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as shard:
        for record in records:
            for name, content in record.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))


def sqlite(folder: Path) -> dict[str, Any]:
    with sqlite3.connect(folder / "pets.db") as database:
        database.execute(
            "CREATE TABLE pets (id TEXT PRIMARY KEY, picture BLOB, caption TEXT, number REAL, Species TEXT)"
        )
        database.executemany("INSERT INTO pets VALUES (?, ?, ?, ?, ?)", [tuple(r.values()) for r in twelve.twelve()])
    return {
        "format": "sql",
        "url": "sqlite:///pets.db",
        "table": "pets",
        "key": "id",
        "chunk_rows": 5,
        "rename": {"Species": "species"},
    }


def written_by_others(name: str, **rename: str) -> Callable[[Path], dict[str, Any]]:
    def copy(folder: Path) -> dict[str, Any]:
        shutil.copytree(SHARDS / name, folder / name)
        return {"format": name, "path": name, "rename": rename}

    return copy


FORMATS = {
    "parquet": parquet,
    "arrow": arrow,
    "csv": csv_file,
    "jsonl": jsonl,
    "folder": media_folder,
    "webdataset": webdataset,
    "sql": sqlite,
    "huggingface": written_by_others("huggingface"),
    "energon": written_by_others("energon", __key__="key", image="picture"),
    "mds": written_by_others("mds"),
}


def dataset(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / "pets"
    folder.mkdir()
    return contract(folder, FORMATS[name](folder))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_lands_the_same_rows(tmp_path: Path, name: str) -> None:
    assert rows(bronze(dataset(tmp_path, name))) == landed()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reaches_gold_and_is_not_redone(tmp_path: Path, name: str) -> None:
    folder = dataset(tmp_path, name)
    result, config = ingested(folder)
    assert result.refused == ()
    gold = Gold.open(config.data.lake, folder)
    read = {row.key: row for row in gold.read(range(12))}
    assert {key: row.answer for key, row in read.items()} == {row["key"]: row["species"] for row in landed()}
    assert read["r03"].question == "Which animal is two\nlines 3?"
    again, _ = ingested(folder)
    assert [layer.reused for layer in again.layers] == [True, True, True]
    assert [layer.snapshot for layer in again.layers] == [layer.snapshot for layer in result.layers]
