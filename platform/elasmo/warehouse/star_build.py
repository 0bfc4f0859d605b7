"""An accepted star made real, as an SQLite database or as Parquet files, and held against its source.

It is built beside its place and moved there when row counts and sums of all numbers equal the source's.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elasmo.data.manifest import alive
from elasmo.warehouse.relation import Relation
from elasmo.warehouse.star import NUMBERS, Star, StarTable, identifier
from elasmo.warehouse.star_sql import ddl, quoted

DATABASES = (".db", ".sqlite", ".sqlite3")
TOLERANCE = 1e-9
"""Relative difference of sums of doubles, which depend on their order."""
LETTERS = {"month": 7, "year": 4}
"""Leading characters of an ISO date that name its period."""


class StarError(ValueError):
    """A star that cannot be built, in one sentence."""


def build(star: Star, relations: Sequence[Relation], place: Path) -> dict[str, int]:
    """Builds an SQLite database where `place` ends like one, else a folder of Parquet files; returns rows by table.

    Raises:
        StarError: there is something at `place`, or what was built does not equal the source.
    """
    if place.exists():
        raise StarError(f"{place} is there already; name another place, or remove it.")
    place.parent.mkdir(parents=True, exist_ok=True)
    _sweep(place)
    draft = place.with_name(f".{place.name}-{os.getpid()}")
    known = {relation.name: relation for relation in relations}
    try:
        made = (_database if place.suffix in DATABASES else _folder)(star, known, draft)
        os.replace(draft, place)
    finally:
        _remove(draft)
    return made


def rows_of(table: StarTable, relation: Relation) -> Iterator[pa.Table]:
    """The rows of a table under its names; a dimension from inside another table has each once, in one batch."""
    names = {column.source: column.name for column in table.columns}
    if table.split is None:
        for batch in relation.read(list(names)):
            yield batch.rename_columns(list(names.values()))
        return
    held: pa.Table | None = None
    for batch in relation.read(list(names)):
        given = batch.filter(pc.is_valid(batch.column(table.split)))
        both = given if held is None else pa.concat_tables([held, given])
        held = both.group_by(list(names), use_threads=False).aggregate([]).select(list(names))
    if held is not None:
        yield held.sort_by(table.split).rename_columns(list(names.values()))


def _sweep(place: Path) -> None:
    """Removes what builds that were killed left behind."""
    for left in place.parent.glob(f".{place.name}-*"):
        process = left.name.removeprefix(f".{place.name}-").split("-")[0]
        if process.isdigit() and not alive(int(process)):
            _remove(left)


def _remove(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    draft.unlink(missing_ok=True)


def _database(star: Star, relations: Mapping[str, Relation], draft: Path) -> dict[str, int]:
    database = sqlite3.connect(draft, isolation_level=None)
    try:
        database.execute("PRAGMA foreign_keys = ON")
        database.executescript(ddl(star))
        database.execute("BEGIN")
        for table in star.tables:
            places = ", ".join("?" * len(table.columns))
            command = f"INSERT INTO {quoted(table.name)} VALUES ({places})"
            for batch in rows_of(table, relations[table.source]):
                database.executemany(command, zip(*(column.to_pylist() for column in batch.columns), strict=True))
        database.execute("COMMIT")
        for relation in relations.values():
            view = quoted(identifier(relation.name))
            (count,) = database.execute(f"SELECT COUNT(*) FROM {view}").fetchone()
            sums: dict[str, float] = {}
            for column, name in _numbers(star, relation).items():
                (total,) = database.execute(f"SELECT SUM({quoted(name)}) FROM {view}").fetchone()
                sums[column] = float(total or 0)
            _refuse_differences(relation, count, sums)
        return {
            table.name: database.execute(f"SELECT COUNT(*) FROM {quoted(table.name)}").fetchone()[0]
            for table in star.tables
        }
    except sqlite3.IntegrityError as error:
        raise StarError(f"The data do not keep the proposed schema ({error}); the source changed meanwhile.") from error
    finally:
        database.close()


def _folder(star: Star, relations: Mapping[str, Relation], draft: Path) -> dict[str, int]:
    draft.mkdir()
    (draft / "schema.sql").write_text(ddl(star))
    (draft / "star.json").write_text(json.dumps(asdict(star), indent=1))
    made = {}
    for table in star.tables:
        kept = pa.concat_tables(rows_of(table, relations[table.source]))
        if table.sort is not None:
            kept = kept.sort_by(table.sort)
        made[table.name] = _write(table, kept, draft / table.name)
        if table.split is None:
            own = {c.source: c.name for c in table.columns if c.kind in NUMBERS}
            files = sorted((draft / table.name).rglob("*.parquet"))
            back = pa.concat_tables(pq.ParquetFile(file).read(use_threads=False) for file in files)
            sums = {source: float(_total(back.column(name))) for source, name in own.items()}
            _refuse_differences(relations[table.source], back.num_rows, sums)
    return made


def _write(table: StarTable, rows: pa.Table, folder: Path) -> int:
    """One file, or one for each period, named `column_period=value` as engines that read Hive layouts expect."""
    pieces = {"": rows}
    if table.partition is not None:
        column, period = table.partition
        parts = pc.fill_null(pc.utf8_slice_codeunits(rows.column(column), 0, LETTERS[period]), "none")
        pieces = {
            f"{column}_{period}={part}": rows.filter(pc.equal(parts, part)) for part in parts.unique().to_pylist()
        }
    for name, piece in pieces.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(piece, folder / name / "part-00000.parquet", compression="zstd")
    return int(rows.num_rows)


def _numbers(star: Star, relation: Relation) -> dict[str, str]:
    """Number columns of a source table and their names in its view."""
    columns = (column for table in star.of_source(relation.name) for column in table.columns)
    return {column.source: column.name for column in columns if column.kind in NUMBERS}


def _refuse_differences(relation: Relation, rows: int, sums: Mapping[str, float]) -> None:
    expected: dict[str, list[Decimal | float | int]] = defaultdict(list)
    sizes: dict[str, float] = defaultdict(float)
    for batch in relation.read(list(sums)) if sums else ():
        for name in sums:
            expected[name].append(_total(batch.column(name)))
            sizes[name] += float(_total(pc.abs(_as_numbers(batch.column(name)))))
    if rows != relation.rows:
        raise StarError(f"{relation.name} has {relation.rows} rows, but {rows} came out; build it again.")
    for name, total in sums.items():
        there = float(sum(map(Decimal, map(str, expected[name]))))
        if abs(there - total) > TOLERANCE * max(1.0, sizes[name]):
            raise StarError(f"{relation.name}.{name} sums to {there:g}, but {total:g} came out; build it again.")


def _as_numbers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.cast(pa.float64()) if pa.types.is_string(values.type) else values


def _total(values: pa.ChunkedArray) -> Decimal | float | int:
    """The sum, exact for whole numbers and decimals."""
    if pa.types.is_string(values.type):
        return sum((Decimal(value) for value in values.drop_null().to_pylist()), Decimal())
    given = values.drop_null().to_pylist()
    return math.fsum(given) if pa.types.is_floating(values.type) else sum(given)
