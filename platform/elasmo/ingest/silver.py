"""Silver: bronze rows that passed every check of the contract, typed, free of duplicates, each in its split.

A row that does not pass is refused with a reason and goes to the quarantine; nothing that a row holds ends ingestion.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pyarrow as pa

from elasmo.config import LimitsConfig
from elasmo.content import language, near, picture_hash, text_hash
from elasmo.data.draft import Ref, Split
from elasmo.data.manifest import Snapshot, SnapshotWriter, canonical_hash, code_hash
from elasmo.ingest import near_rows, row_text, silver_rows
from elasmo.ingest.bronze import ShardBuffer
from elasmo.ingest.silver_rows import RowBuilder, digest_of
from elasmo.ingest.spill import Spill
from elasmo.model import cell, media
from elasmo.sources import check, marks
from elasmo.sources.contract import Column, Contract, ContractError, RecordField, SplitRule, TableSpec
from elasmo.sources.marks import marked, near_columns
from elasmo.sources.quarantine import RowError, write_quarantine
from elasmo.sources.source import Source

Kind = Literal["image", "audio", "record"]
KIND_OF: dict[str, Kind] = {"image": "image", "audio": "audio", "record": "record"}
SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "category": pa.string()}


def silver_fingerprint(bronze: Snapshot, contract: Contract, limits: LimitsConfig) -> str:
    """Hash of everything that silver is computed from."""
    hashing = (near, near_rows, picture_hash, text_hash)
    code = code_hash(sys.modules[__name__], check, silver_rows, cell, media, marks, language, row_text, *hashing)
    settings = [part.model_dump(mode="json") for part in (contract, limits)]
    return canonical_hash([code, version("py3langid"), bronze.sha256, *settings])


def write_silver(lake: Path, bronze: Snapshot, contract: Contract, source: Source, limits: LimitsConfig) -> Snapshot:
    """Checks, types, deduplicates, splits and marks the bronze rows.

    `details.quarantine` names the refused ones, `details.near` counts near duplicates and those across the split.
    """
    builder = RowBuilder(bronze, contract, source, limits)
    with SnapshotWriter(lake, contract.name, "silver", [bronze.parent]) as writer:
        with TemporaryDirectory(dir=writer.folder) as folder:
            spill = Spill(Path(folder))
            for table in followed_first(source.tables, source.splits):
                made = schema(source.tables[table], contract)
                writer.declare(table, made)
                waits = bool(near_columns(source.tables[table], contract.near))  # for the last row of the table
                buffer = ShardBuffer(spill if waits else writer, table, made)
                for row in builder.accepted(table):
                    buffer.append(row)
                buffer.flush()
                nearby = builder.nearby(table)
                for part in spill.read(table):
                    rows = nearby.added_to(part)
                    if rows.num_rows:
                        writer.add(table, rows)
        quarantine = write_quarantine(lake, contract.name, bronze, builder.refusals)
        found = {kind: found.to_json() for kind, found in builder.near_found().items()}
        writer.details = {"quarantine": quarantine, "refused": len(builder.refusals), "near": found}
    return writer.snapshot


def followed_first(tables: Mapping[str, TableSpec], splits: Mapping[str, SplitRule]) -> list[str]:
    """Tables in an order in which a followed table comes before those that follow it; cycles are refused."""
    order: list[str] = []
    waiting = list(tables)
    while waiting:
        ready = [t for t in waiting if t not in splits or splits[t].of is None or splits[t].of in order]
        if not ready:
            raise ContractError(
                f"splits of {', '.join(waiting)} follow each other in a circle; one must have a concept"
            )
        order += ready
        waiting = [table for table in waiting if table not in ready]
    return order


def schema(spec: TableSpec, contract: Contract) -> pa.Schema:
    """Arrow schema of a silver table: its columns, `split` and `concept`, and the marks (`marks.py`)."""
    columns = [(name, _arrow_type(column, contract.record)) for name, column in spec.columns.items()]
    taken = {name for name, _ in columns}
    extra = [(name, pa.string()) for name in ("split", "concept") if name not in taken]
    return pa.schema(columns + extra + list(marked(spec, contract.near, contract.languages).items()))


class Silver:
    """Reads a silver snapshot: typed rows, and single media by reference."""

    def __init__(self, snapshot: Snapshot, source: Source) -> None:
        self.snapshot = snapshot
        self._specs = source.tables
        self._columns: dict[tuple[str, str | None], tuple[dict[str, int], pa.ChunkedArray, Kind]] = {}
        self._digests: dict[Ref, str] = {}

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Typed rows in bronze order with `split` and `concept`, without media bytes."""
        spec = self._specs[table]
        heavy = [name for name, column in spec.columns.items() if column.type in ("image", "audio")]
        names = [n["name"] for n in self.snapshot.manifest["tables"][table]["schema"] if n["name"] not in heavy]
        return [row for shard in self.snapshot.read(table, names) for row in shard.to_pylist()]

    @cached_property
    def places(self) -> dict[Ref, tuple[Split | None, str | None]]:
        """Split and concept of every row."""
        found: dict[Ref, tuple[Split | None, str | None]] = {}
        for table, spec in self._specs.items():
            for shard in self.snapshot.read(table, [spec.key, "split", "concept"]):
                for row in shard.to_pylist():
                    found[Ref(table, row[spec.key])] = row["split"], row["concept"]
        return found

    def place(self, ref: Ref) -> tuple[Split | None, str | None]:
        """Split and concept of a row; raises RowError where it was refused or never was."""
        if ref.row not in self.places:
            raise RowError(f"its part {ref} is not in silver: it was quarantined, or no such row was landed")
        rows, values, _ = self._column(ref)
        if not values[rows[ref.key]].is_valid:
            raise RowError(f"its part {ref} is empty")
        return self.places[ref.row]

    def kind(self, ref: Ref) -> Kind:
        """What a reference stands for: an image, a sound or a record."""
        return self._column(ref)[2]

    def content(self, ref: Ref) -> Any:
        """What a reference stands for: the bytes of an image or a sound, or the fields of a record."""
        rows, values, _ = self._column(ref)
        return values[rows[ref.key]].as_py()

    def digest(self, ref: Ref) -> str:
        """Hash of the bytes of an image or a sound."""
        if ref not in self._digests:
            self._digests[ref] = digest_of(self.content(ref))
        return self._digests[ref]

    def _column(self, ref: Ref) -> tuple[dict[str, int], pa.ChunkedArray, Kind]:
        place = ref.table, ref.column
        if place not in self._columns:
            spec = self._specs[ref.table]
            held = [
                (name, KIND_OF[column.type])
                for name, column in spec.columns.items()
                if column.type in KIND_OF and ref.column in (None, name)
            ]
            if len(held) != 1:
                raise RowError(
                    f"{ref} names {len(held)} image, audio and record columns of table {ref.table}; it must name one"
                )
            ((name, kind),) = held
            rows = self.snapshot.read_all(ref.table, [spec.key, name])
            index = {key: position for position, key in enumerate(rows.column(spec.key).to_pylist())}
            self._columns[place] = index, rows.column(name), kind
        return self._columns[place]


def _arrow_type(column: Column, record: Mapping[str, RecordField]) -> pa.DataType:
    if column.type in ("image", "audio"):
        return pa.binary()
    if column.type == "record":
        return pa.struct(
            [
                (n, pa.string() if f.type != "number" else pa.int64() if f.integer else pa.float64())
                for n, f in record.items()
            ]
        )
    return SCALARS.get(column.type, pa.string())
