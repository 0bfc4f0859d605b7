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
from elasmo.data.lineage import lineage
from tests.sources import twelve
from tests.sources.twelve import bronze, contract, ingested, landed, rows

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


def example() -> str:
    """The contract that data/README.md shows for tables."""
    page = (Path(__file__).parents[2] / "data/README.md").read_text()
    return page.split("## Bring your own data: tables", 1)[1].split("```yaml\n", 1)[1].split("```", 1)[0]


def test_the_example_of_the_readme_ingests(tmp_path: Path) -> None:
    folder = tmp_path / "shelter"
    (folder / "pets").mkdir(parents=True)
    (folder / "contract.yaml").write_text(example())
    pets = [
        {
            "key": row["key"],
            "owner": f"o{n // 2}",
            "photo": row["picture"],
            "name": f"n{n}",
            "age": n,
            "species": row["species"],
        }
        for n, row in enumerate(twelve.twelve())
    ]
    pq.write_table(pa.Table.from_pylist(pets[:6]), folder / "pets/part-0.parquet")
    pq.write_table(
        pa.Table.from_pylist([*pets[6:], {**pets[0], "key": "old", "age": 99}]), folder / "pets/part-1.parquet"
    )
    result, config = ingested(folder)
    assert {refusal.reason for refusal in result.refused} == {"age is 99; it must be at least 0 and at most 40"}
    read = {row.key: row for row in Gold.open(config.data.lake, folder).read(range(24))}
    assert read["r04/species"].question == "Which animal is n4?" and read["r04/species"].answer == "dog"
    assert read["r04/age"].record == {"age": 4.0} and read["r04/age"].concept == "o2"
    by_owner = {(row.concept, row.split) for row in read.values()}
    assert len(by_owner) == 6


def test_lineage_and_hashes_cover_everything_that_lands(tmp_path: Path) -> None:
    folder = dataset(tmp_path, "csv")
    result, config = ingested(folder)
    chain = lineage(config.data.lake, folder, result.gold)
    assert sorted(chain.files) == ["contract.yaml", *(f"media/{row['key']}.png" for row in landed()), "rows.csv"]
    (folder / "media/r00.png").write_bytes(twelve.png(99))
    changed, _ = ingested(folder)
    assert not {layer.snapshot for layer in result.layers} & {layer.snapshot for layer in changed.layers}


def test_two_tables_from_two_formats_follow_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(twelve.twelve()), folder / "a.parquet")
    visits = [{"key": f"v{n}", "pet": f"r{n:02d}", "cost": n} for n in range(13)]
    (folder / "visits.jsonl").write_text("\n".join(json.dumps(visit) for visit in visits))
    columns = {"key": {"type": "string"}, "pet": {"type": "string"}, "cost": {"type": "integer"}}
    turns = [
        {"role": "user", "segments": [{"text": "What did {key} cost?"}]},
        {"role": "assistant", "segments": [{"text": "{cost}"}]},
    ]
    origins = {
        "pets": {"format": "parquet", "path": "a.parquet"},
        "visits": {"format": "jsonl", "path": "visits.jsonl"},
    }
    contract(
        folder,
        {},
        **{"from": origins},
        tables={"visits": {"columns": columns}, "pets": {"columns": twelve.COLUMNS}},
        splits={"pets": {"concept": "species", "heldout": ["fish"]}, "visits": {"follows": "pet", "of": "pets"}},
        samples=[{"table": "pets", "turns": twelve.TURNS}, {"table": "visits", "turns": turns}],
    )
    result, _ = ingested(folder)
    assert [refusal.reason for refusal in result.refused] == ["pet is pets/r12, which was refused or never landed"]
    assert result.modalities == {"train": {"image": 8, "text": 8}, "heldout": {"image": 4, "text": 4}}
