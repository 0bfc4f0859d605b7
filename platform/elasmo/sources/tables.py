"""A source that needs no code: the contract says where each table lands from, and how samples are made of its rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from elasmo.data.draft import Draft
from elasmo.sources import (
    read_arrow,
    read_csv,
    read_energon,
    read_folder,
    read_huggingface,
    read_jsonl,
    read_mds,
    read_parquet,
    read_webdataset,
    row_samples,
    source_row,
)
from elasmo.sources.check_tables import check_tables
from elasmo.sources.chunked_copy import Landed, sweep
from elasmo.sources.contract import CONTRACT_FILE, Contract, SplitRule, TableSpec
from elasmo.sources.locate import SourceFile, locate
from elasmo.sources.origin import FilesOrigin, SqlOrigin
from elasmo.sources.quarantine import Refusal, RowError
from elasmo.sources.read_sql import SqlTable
from elasmo.sources.reader import Reader
from elasmo.sources.source import Row, SilverRows, SourceError, landed_columns
from elasmo.sources.source_row import FAULT, SourceRow, medium, scalar

READERS: dict[str, Reader] = {
    "parquet": read_parquet,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "arrow": read_arrow,
    "folder": read_folder,
    "webdataset": read_webdataset,
    "huggingface": read_huggingface,
    "energon": read_energon,
    "mds": read_mds,
}
NAMES_MEDIA = ("csv", "jsonl", "parquet", "arrow", "huggingface")
"""Formats whose records may name a medium's file instead of holding its bytes."""
MEDIA = ("image", "audio")
COPIES = "copies"
"""Folder of the dataset in the lake where copies of SQL tables grow until bronze stands."""


class TablesSource:
    """Lands every declared table from its origin; what a record lacks is kept beside it and refused by silver."""

    def __init__(self, folder: Path, contract: Contract, lake: Path) -> None:
        self.folder = folder
        self.contract = contract
        check_tables(str(folder / CONTRACT_FILE), contract)
        self._copies = lake / contract.name / COPIES
        self._databases = {
            table: SqlTable(self._copies, folder, f"from.{table}", origin, self.landed(table), self._wanted(table))
            for table, origin in contract.origins.items()
            if isinstance(origin, SqlOrigin)
        }

    @property
    def tables(self) -> Mapping[str, TableSpec]:
        return self.contract.tables

    @property
    def splits(self) -> Mapping[str, SplitRule]:
        """Those of the contract; a row is its own concept in a table of samples that has none."""
        fraction = self.contract.heldout_fraction
        own = {
            sample.table: SplitRule(concept=self.tables[sample.table].key, heldout_fraction=fraction)
            for sample in self.contract.samples
        }
        return {**own, **self.contract.splits}

    @property
    def code(self) -> tuple[ModuleType, ...]:
        formats = sorted({origin.format for origin in self.contract.origins.values()})
        return (sys.modules[__name__], source_row, *(sys.modules[f"elasmo.sources.read_{name}"] for name in formats))

    def describe(self) -> dict[str, dict[str, str]]:
        """Hashes of all files; SQL tables are copied into the lake first, and their checksum stands for them."""
        files = {file.name: file for file in locate(self.folder, "the contract", CONTRACT_FILE, ())}
        inputs: dict[str, str] = {}
        for table, origin in self.contract.origins.items():
            if isinstance(origin, SqlOrigin):
                database = self._databases[table]
                with self._unlocking():
                    done = database.complete(partial(self._from_database, table), self.contract.timeouts.source_s)
                inputs[f"{database.name} ({done.rows} rows)"] = done.checksum
                continue
            found = self._files(table, origin)
            files |= {file.name: file for file in (*found, *self._named_media(table, origin, found))}
        hashes = {name: file.sha256() for name, file in sorted(files.items())}
        outside = {name for name in hashes if "://" in name or Path(name).is_absolute()}
        return {
            "files": {name: sha256 for name, sha256 in hashes.items() if name not in outside},
            "inputs": {**inputs, **{name: hashes[name] for name in sorted(outside)}},
        }

    def landed(self, table: str) -> dict[str, bool]:
        return {**landed_columns(self.tables[table]), FAULT: False}

    def land(self) -> Iterator[tuple[str, Row]]:
        for table, origin in self.contract.origins.items():
            rows = (
                self._databases[table].copy.rows()
                if isinstance(origin, SqlOrigin)
                else (row for _, row in self.records(table))
            )
            with self._unlocking():
                yield from ((table, row) for row in rows)

    def peek(self, table: str, rows: int) -> list[Mapping[str, Any]]:
        """The first rows of a table as its source has them, under the source's names."""
        origin = self.contract.origins[table]
        if isinstance(origin, SqlOrigin):
            return self._databases[table].peek(rows)
        found = READERS[origin.format].read(origin, self._files(table, origin))
        return [row.values for row in islice((row for row in found if row.fault is None), rows)]

    def records(self, table: str) -> Iterator[tuple[str, Landed]]:
        """(place, landed row) of each record of a table that lands from files.

        Raises:
            SourceError: a file cannot be read, or no record has a column that must be there.
        """
        origin = self.contract.origins[table]
        assert not isinstance(origin, SqlOrigin)
        seen: dict[str, None] = {}
        for row in READERS[origin.format].read(origin, self._files(table, origin)):
            values = _renamed(row.values, origin.rename)
            seen |= dict.fromkeys(values)
            yield row.place, self._landed(table, replace(row, values=values))
        spec = self.tables[table]
        absent = [
            name
            for name, column in spec.columns.items()
            if name not in seen and name != spec.key and not column.nullable
        ]
        if seen and absent:
            raise SourceError(
                f"from.{table}: no record of {origin.path!r} has column {absent[0]!r}; columns are {', '.join(seen)}: "
                "take the column out of the contract, make it nullable, or map one to it with `rename`."
            )

    def check_database(self, table: str) -> None:
        """Looks whether a table that lands from a database could; reads no row.

        Raises:
            SourceError: it cannot be read, or lacks a column.
        """
        self._databases[table].check()

    def release(self) -> None:
        """Bronze stands: copies of SQL tables may go, and what is left of those of earlier contracts."""
        for database in self._databases.values():
            database.copy.discard()
        sweep(self._copies)

    def parse(self, table: str, row: Row) -> Row:
        if row[FAULT] is not None:
            raise RowError(row[FAULT])
        return row

    def drafts(self, silver: SilverRows) -> Iterator[Draft | Refusal]:
        return row_samples.drafts(self.contract, silver)

    @contextmanager
    def _unlocking(self) -> Iterator[None]:
        """Keeps what was copied, but not the right to it, when ingestion fails."""
        try:
            yield
        except BaseException:
            for database in self._databases.values():
                database.copy.unlock()
            raise

    def _files(self, table: str, origin: FilesOrigin) -> list[SourceFile]:
        return locate(self.folder, f"from.{table}.path", origin.path, READERS[origin.format].SUFFIXES)

    def _from_database(self, table: str, values: Mapping[str, Any], key: str) -> Landed:
        origin, spec = self._databases[table].origin, self.tables[table]
        named = {**_renamed(values, origin.rename), spec.key: key}
        return self._landed(table, SourceRow(f"{origin.table or 'query'}:{key}", named))

    def _wanted(self, table: str) -> list[str]:
        """Columns of the database that land besides its key, which lands as the table's key."""
        back = {ours: theirs for theirs, ours in self.contract.origins[table].rename.items()}
        spec = self.tables[table]
        return [back.get(name, name) for name in spec.columns if name != spec.key]

    def _landed(self, table: str, row: SourceRow) -> Landed:
        """A record as bronze keeps it, with its first fault; a record without a key is called by its place."""
        spec, values = self.tables[table], row.values
        landed: dict[str, str | bytes | None] = {}
        faults = [row.fault] if row.fault else []
        for name, column in spec.columns.items():
            landed[name] = None
            try:
                heavy = column.type in MEDIA
                landed[name] = _medium(name, values.get(name), row.file) if heavy else scalar(name, values.get(name))
            except RowError as error:
                faults.append(str(error))
        if not landed[spec.key]:
            faults += [f"{spec.key} is missing"] if spec.key in values else []
            landed[spec.key] = row.place
        landed[FAULT] = f"{row.place}: {faults[0]}" if faults else None
        return landed

    def _named_media(self, table: str, origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceFile]:
        """Files of media that records name by their path."""
        names = [name for name, column in self.tables[table].columns.items() if column.type in MEDIA]
        if not names or origin.format not in NAMES_MEDIA:
            return
        for row in READERS[origin.format].read(origin, files):
            values = _renamed(row.values, origin.rename)
            for path in (values.get(name) for name in names):
                found = row.file.beside(path) if isinstance(path, str) and row.file is not None else None
                if found is not None and found.exists():
                    yield found


def _renamed(values: Mapping[str, Any], rename: Mapping[str, str]) -> Mapping[str, Any]:
    """Values under the contract's names; a renamed column wins over one that had the name before."""
    if not rename:
        return values
    return {
        **{name: value for name, value in values.items() if name not in rename},
        **{ours: values[theirs] for theirs, ours in rename.items() if theirs in values},
    }


def _medium(name: str, value: Any, file: SourceFile | None) -> bytes | None:
    """The bytes of a medium, read from its file where the record holds a path.

    Raises:
        RowError: no bytes, or a path that leads nowhere.
    """
    content = medium(name, value)
    if not isinstance(content, str):
        return content
    if file is None:
        raise RowError(f"{name} is a text; here it must be the bytes of a file")
    beside = file.beside(content)
    if beside is None:
        raise RowError(
            f"{name} is {content!r}, which leaves the folder of {file.name}; it must be relative, without .."
        )
    if not beside.exists():
        raise RowError(f"{name} is {content!r}, and {beside.name} does not exist")
    return beside.read()
