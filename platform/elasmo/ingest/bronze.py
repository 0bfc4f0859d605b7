"""Bronze: rows as their source has them, scalars as text and media as bytes, with the hashes of what they came from."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from elasmo.data.manifest import Snapshot, SnapshotWriter, canonical_hash, code_hash
from elasmo.sources.contract import Contract
from elasmo.sources.deadline import within_deadline
from elasmo.sources.source import Row, Source, SourceError

SHARD_ROWS, SHARD_BYTES = 2048, 32 << 20


class Shards(Protocol):
    """Where shards go: a snapshot, or a `Spill`."""

    def declare(self, table: str, schema: pa.Schema) -> None: ...

    def add(self, table: str, rows: pa.Table) -> None: ...


class ShardBuffer:
    """Collects rows of one table and writes a shard whenever it is full."""

    def __init__(self, writer: Shards, table: str, schema: pa.Schema) -> None:
        self.writer = writer
        self.table = table
        self.schema = schema
        self._rows: list[Mapping[str, Any]] = []
        self._bytes = 0
        writer.declare(table, schema)

    def append(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        self._bytes += sum(len(value) for value in row.values() if isinstance(value, bytes | str))
        if len(self._rows) >= SHARD_ROWS or self._bytes >= SHARD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what is left."""
        if self._rows:
            self.writer.add(self.table, pa.Table.from_pylist(self._rows, self.schema))
        self._rows, self._bytes = [], 0


def bronze_fingerprint(contract: Contract, source: Source, described: Mapping[str, Mapping[str, str]]) -> str:
    """Hash of everything that bronze is computed from."""
    code = code_hash(sys.modules[__name__], *source.code)
    return canonical_hash([code, contract.name, described])


def write_bronze(
    lake: Path, contract: Contract, source: Source, described: Mapping[str, Mapping[str, str]]
) -> Snapshot:
    """Lands the source. `described` is the source's `describe()`; the manifest keeps it with the licences.

    Raises:
        SourceError: the source cannot be read, or gave no row for longer than the contract's `timeouts.source_s`.
    """
    licences = [licence.model_dump() for licence in contract.licences]
    keys = {table: spec.key for table, spec in source.tables.items()}
    details = {"title": contract.title, "source": contract.source, "licences": licences, "keys": keys, **described}
    with SnapshotWriter(lake, contract.name, "bronze", details=details) as writer:
        buffers = {}
        for table in source.tables:
            columns = source.landed(table)
            schema = pa.schema([(name, pa.binary() if binary else pa.string()) for name, binary in columns.items()])
            buffers[table] = ShardBuffer(writer, table, schema)
        late = partial(_late, contract, keys)
        for table, row in within_deadline(source.land(), contract.timeouts.source_s, late):
            buffers[table].append(_as_landed(row, buffers[table].schema))
        for buffer in buffers.values():
            buffer.flush()
    return writer.snapshot


def _as_landed(row: Row, schema: pa.Schema) -> dict[str, Any]:
    return {column.name: _text(row.get(column.name), column.type) for column in schema}


def _text(value: Any, kind: pa.DataType) -> str | bytes | None:
    if value is None or isinstance(value, str):
        return value if value is None or pa.types.is_string(kind) else value.encode()
    if isinstance(value, bytes):
        return value if pa.types.is_binary(kind) else value.decode(errors="replace")
    return json.dumps(value, ensure_ascii=False)


def _late(contract: Contract, keys: Mapping[str, str], last: tuple[str, Row] | None, rows: int) -> SourceError:
    after = "its first row" if last is None else f"the row after {last[0]}/{last[1].get(keys.get(last[0], ''))}"
    return SourceError(
        f"{contract.name}: its source (source: {contract.source}) did not give {after} within "
        f"{contract.timeouts.source_s:g} s ({rows} rows had landed); mend the source, or raise timeouts.source_s in "
        "the contract. Layers and copied chunks that stand are kept."
    )
