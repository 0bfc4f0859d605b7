"""Samples of rows: templates, media, records, keys; what a row lacks is a refusal, what the contract lacks an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from elasmo.data.gold import Gold
from elasmo.sources.row_samples import fill
from tests.pets import wav
from tests.sources.twelve import COLUMNS, contract, ingested, png, twelve

ORIGIN = {"format": "parquet", "path": "*.parquet"}


def ask(*segments: dict[str, Any], answer: str = "{species}") -> list[dict[str, Any]]:
    return [{"role": "user", "segments": list(segments)}, {"role": "assistant", "segments": [{"text": answer}]}]


def write(folder: Path, records: list[dict[str, Any]], **changes: Any) -> Path:
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(records), folder / "a.parquet")
    return contract(folder, ORIGIN, **changes)


def test_a_template_takes_columns_and_braces() -> None:
    assert fill("{{{a}}} is {b}", {"a": "x", "b": 1.5}) == "{x} is 1.5"


def test_two_samples_a_row_with_two_media_and_a_record_of_columns(tmp_path: Path) -> None:
    columns = {**COLUMNS, "back": {"type": "image"}, "sound": {"type": "audio"}}
    record = {"age": {"type": "number", "min": 0}, "kind": {"type": "category", "categories": ["cat", "dog", "fish"]}}
    both = ask({"image": "back"}, {"text": "and"}, {"image": "picture"}, {"audio": "sound"}, {"text": "?"})
    fields = ask(
        {"table": {"age": "number", "kind": "species"}}, {"text": "What is it?"}, answer="It is {{a}} {species}"
    )
    records = [{**row, "back": png(100 + n), "sound": wav(n)} for n, row in enumerate(twelve())]
    folder = write(
        tmp_path / "pets",
        records,
        tables={"pets": {"columns": columns}},
        record=record,
        media={"sample_rate": 22_050},
        modalities=["image+audio", "table"],
        samples=[
            {"table": "pets", "key": "{key}/both", "turns": both},
            {"table": "pets", "key": "{key}/{species}", "turns": fields},
        ],
    )
    result, config = ingested(folder)
    assert result.refused == ()
    gold = Gold.open(config.data.lake, folder)
    read = {row.key: row for row in gold.read(range(24))}
    assert set(read) == {f"{r['key']}/{x}" for r in records for x in ("both", r["species"])}
    assert list(read["r02/both"].images) == [png(102), png(2)]
    assert read["r04/dog"].record == {"age": 1.0, "kind": "dog"}
    assert read["r04/dog"].answer == "It is {a} dog"
    assert {row.concept for row in read.values()} == {row["key"] for row in records}


def test_a_row_that_lacks_what_its_turns_need_is_refused_with_the_reason(tmp_path: Path) -> None:
    nullable = {
        name: {**column, "nullable": name in ("caption", "picture", "number")} for name, column in COLUMNS.items()
    }
    records = twelve()
    records[1]["caption"] = records[2]["picture"] = None
    folder = write(tmp_path / "pets", records, tables={"pets": {"columns": nullable}})
    result, _ = ingested(folder)
    assert {refusal.key: refusal.reason for refusal in result.refused} == {
        "pets/r01": "'Which animal is {caption}?' needs caption, of which the row has no value",
        "r02": "its part pets/r02/picture is empty",
    }


def test_a_concept_keeps_rows_together_and_splits_may_be_declared(tmp_path: Path) -> None:
    splits = {"pets": {"concept": "species", "heldout": ["fish"]}}
    result, _ = ingested(write(tmp_path / "pets", twelve(), splits=splits))
    assert result.modalities == {"train": {"image": 8}, "heldout": {"image": 4}}


def test_a_record_column_is_an_object_of_the_source(tmp_path: Path) -> None:
    columns = {**COLUMNS, "facts": {"type": "record"}}
    record = {
        "age": {"type": "number", "min": 0},
        "coat": {"type": "category", "categories": ["black"], "nullable": True},
    }
    facts = [{"age": n - 1, "coat": "black" if n % 2 else None} for n in range(12)]
    folder = write(
        tmp_path / "pets",
        [{**row, "facts": fact} for row, fact in zip(twelve(), facts, strict=True)],
        tables={"pets": {"columns": columns}},
        record=record,
        heldout_fraction=0.0,
        samples=[{"table": "pets", "turns": ask({"table": "facts"}, {"text": "What is it?"})}],
    )
    result, config = ingested(folder)
    assert [refusal.reason for refusal in result.refused] == ["record field age is -1; it must be at least 0"]
    read = {row.key: row.record for row in Gold.open(config.data.lake, folder).read(range(11))}
    assert read == {row["key"]: fact for row, fact in list(zip(twelve(), facts, strict=True))[1:]}


def test_a_record_of_columns_is_checked_as_one(tmp_path: Path) -> None:
    record = {"age": {"type": "number", "min": 1}}
    samples = [{"table": "pets", "turns": ask({"table": {"age": "number"}}, {"text": "What is it?"})}]
    result, _ = ingested(write(tmp_path / "pets", twelve(), record=record, samples=samples))
    reasons = {refusal.key: refusal.reason for refusal in result.refused}
    assert reasons == {f"pets/r0{n}": f"record field age is {n / 4}; it must be at least 1" for n in range(4)}
