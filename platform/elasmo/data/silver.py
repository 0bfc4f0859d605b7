"""Silver: bronze rows that passed every check of the contract, typed, free of duplicates, each in its split.

A row that does not pass is refused with a reason and goes to the quarantine; nothing that a row holds ends ingestion.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from elasmo.config import LimitsConfig
from elasmo.data import check
from elasmo.data.bronze import ShardBuffer
from elasmo.data.check import Checks
from elasmo.data.contract import Column, Contract, ContractError, RecordField, SplitRule, TableSpec
from elasmo.data.draft import Ref, Split
from elasmo.data.manifest import Snapshot, SnapshotWriter, canonical_hash, code_hash
from elasmo.data.quarantine import Refusal, RowError, write_quarantine
from elasmo.data.source import Row, Source
from elasmo.model import cell, media

Kind = Literal["image", "audio", "record"]
KIND_OF: dict[str, Kind] = {"image": "image", "audio": "audio", "record": "record"}
SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "category": pa.string()}


def silver_fingerprint(bronze: Snapshot, contract: Contract, limits: LimitsConfig) -> str:
    """Hash of everything that silver is computed from."""
    code = code_hash(sys.modules[__name__], check, cell, media)
    return canonical_hash([code, bronze.sha256, contract.model_dump(mode="json"), limits.model_dump(mode="json")])


def write_silver(lake: Path, bronze: Snapshot, contract: Contract, source: Source, limits: LimitsConfig) -> Snapshot:
    """Checks, types, deduplicates and splits the bronze rows; `details.quarantine` names the refused ones."""
    builder = _Builder(bronze, contract, source, limits)
    with SnapshotWriter(lake, contract.name, "silver", [bronze.parent]) as writer:
        for table in followed_first(source.tables, source.splits):
            buffer = ShardBuffer(writer, table, schema(source.tables[table], contract.record))
            for row in builder.accepted(table):
                buffer.append(row)
            buffer.flush()
        quarantine = write_quarantine(lake, contract.name, bronze, builder.refusals)
        writer.details = {"quarantine": quarantine, "refused": len(builder.refusals)}
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


def schema(spec: TableSpec, record: Mapping[str, RecordField]) -> pa.Schema:
    """Arrow schema of a silver table: its columns, then `split` and `concept`."""
    columns = [(name, _arrow_type(column, record)) for name, column in spec.columns.items()]
    taken = {name for name, _ in columns}
    extra = [(name, pa.string()) for name in ("split", "concept") if name not in taken]
    return pa.schema(columns + extra)


def heldout_by_hash(table: str, concept: str, fraction: float) -> bool:
    """Whether a concept falls into the held-out share: a fixed function of its name alone, even over [0, 1)."""
    digest = hashlib.blake2b(f"{table}/{concept}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < fraction


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
            self._digests[ref] = _digest(self.content(ref))
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


class _Builder:
    """Walks bronze tables and remembers what later rows depend on."""

    def __init__(self, bronze: Snapshot, contract: Contract, source: Source, limits: LimitsConfig) -> None:
        self.bronze = bronze
        self.source = source
        self.checks = Checks(contract.record, limits, contract.media.sample_rate)
        self.refusals: list[Refusal] = []
        self._places: dict[Ref, tuple[Split | None, str | None]] = {}

    def accepted(self, table: str) -> Iterator[dict[str, Any]]:
        """Typed rows of a table that passed, in bronze order."""
        spec, rule = self.source.tables[table], self.source.splits.get(table)
        seen: dict[str, dict[str, str]] = defaultdict(dict)
        heldout = self._heldout_concepts(table, rule)
        for landed in self._landed(table):
            key = landed.get(spec.key) or ""
            try:
                row = self._typed(spec, self.source.parse(table, landed))
                _refuse_duplicate(spec, row, seen)
                row["split"], row["concept"] = self._place(table, rule, row, heldout)
            except RowError as error:
                self.refusals.append(Refusal("silver", table, key, str(error)))
                continue
            self._places[Ref(table, row[spec.key])] = row["split"], row["concept"]
            for column in (spec.key, *spec.unique):
                seen[column][_digest(row[column])] = row[spec.key]
            yield row

    def _landed(self, table: str) -> Iterator[Row]:
        for shard in self.bronze.read(table):
            yield from shard.to_pylist()

    def _typed(self, spec: TableSpec, row: Row) -> dict[str, Any]:
        return {name: self.checks.value(name, column, row.get(name)) for name, column in spec.columns.items()}

    def _heldout_concepts(self, table: str, rule: SplitRule | None) -> frozenset[str]:
        """Concepts that some row declares held out; found first, so that the order of rows does not matter."""
        if rule is None or rule.column is None or rule.concept is None:
            return frozenset()
        found = set()
        for landed in self._landed(table):
            try:
                row = self.source.parse(table, landed)
            except RowError:
                continue
            if row.get(rule.column) == "heldout":
                found.add(str(row.get(rule.concept)))
        return frozenset(found)

    def _place(
        self, table: str, rule: SplitRule | None, row: dict[str, Any], heldout: frozenset[str]
    ) -> tuple[Split | None, str | None]:
        if rule is None:
            return None, None
        if rule.follows is not None and rule.of is not None:
            leader = Ref(rule.of, str(row[rule.follows]))
            if leader not in self._places:
                raise RowError(f"{rule.follows} is {leader}, which was refused or never landed")
            return self._places[leader]
        concept = str(row[rule.concept or ""])
        declared: Split | None = row[rule.column] if rule.column is not None else None
        if declared == "train" and concept in heldout:
            raise RowError(f"concept {concept!r} is declared train here and held out in another row; it would leak")
        if declared is None:
            by_hash = heldout_by_hash(table, concept, rule.heldout_fraction)
            declared = "heldout" if concept in heldout or concept in rule.heldout or by_hash else "train"
        return declared, concept


def _refuse_duplicate(spec: TableSpec, row: Mapping[str, Any], seen: Mapping[str, Mapping[str, str]]) -> None:
    for column in (spec.key, *spec.unique):
        first = seen.get(column, {}).get(_digest(row[column]))
        if first is not None:
            raise RowError(f"{column} is the same as in row {first!r}; exact duplicates are kept once")


def _digest(value: Any) -> str:
    content = value if isinstance(value, bytes) else str(value).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


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
