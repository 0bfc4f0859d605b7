"""Tables as the search for facts and dimensions sees them: columns by kind, read in batches, a few columns at a time.

Values travel as Arrow integers, doubles, booleans, texts (dates, times and decimals too) or bytes. The kind of a column
is that of all of its values: texts that are all whole numbers, numbers, dates or times count as such.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elasmo.data.manifest import Snapshot
from elasmo.ingest.profiling import unfold
from elasmo.sources.database import database_url, reading
from elasmo.sources.marks import DISTANCE, LANGUAGE, MODALITY, NEAR
from elasmo.sources.source import SourceError
from elasmo.sources.source_row import FAULT

if TYPE_CHECKING:
    from sqlalchemy import URL

Kind = Literal["integer", "number", "decimal", "boolean", "date", "timestamp", "text", "bytes"]
BATCH_ROWS = 65_536
CARRIED: dict[Kind, pa.DataType] = {
    "integer": pa.int64(), "number": pa.float64(), "decimal": pa.string(), "boolean": pa.bool_(), "date": pa.string(),
    "timestamp": pa.string(), "text": pa.string(), "bytes": pa.binary(),
}  # fmt: skip
PATTERNS: dict[Kind, str] = {
    "integer": r"^(0|-?[1-9][0-9]{0,17})$",
    "number": r"^-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?([eE][-+]?[0-9]{1,2})?$",
    "date": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "timestamp": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$",
}
PARSED: dict[Kind, pa.DataType] = {"date": pa.date32(), "timestamp": pa.timestamp("us")}


@dataclass(frozen=True)
class Declared:
    """A foreign key that a database declares."""

    columns: tuple[str, ...]
    table: str
    to: tuple[str, ...]


@dataclass(frozen=True)
class Relation:
    """A table.

    Attributes:
        name: of the table.
        columns: names in their order.
        rows: how many.
        raw: reads some columns, batch by batch, in any Arrow types.
        kinds: of the columns; empty until `with_kinds` has read them.
        key: the declared primary key, empty without one.
        references: declared foreign keys.
    """

    name: str
    columns: tuple[str, ...]
    rows: int
    raw: Callable[[Sequence[str]], Iterator[pa.Table]] = field(repr=False, compare=False)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    references: tuple[Declared, ...] = ()

    def read(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Batches of some columns, in the types that carry their kinds."""
        schema = pa.schema([(name, CARRIED[self.kinds[name]]) for name in columns])
        for batch in self.raw(list(columns)):
            yield pa.table([as_kind(batch.column(f.name), f.type) for f in schema], schema=schema)


def kind_of(values: pa.ChunkedArray, so_far: Kind | None) -> Kind | None:
    """The kind of a batch's values together with those of the batches before; None while there is no value."""
    given = values.drop_null()
    if not len(given):
        return so_far
    if so_far == "bytes" or pa.types.is_binary(given.type) or pa.types.is_large_binary(given.type):
        return "bytes"
    if so_far == "text":
        return "text"
    found = _kind(given)
    if so_far in (None, found):
        return found
    if {so_far, found} == {"integer", "number"}:
        return "number"
    if {so_far, found} <= {"integer", "decimal"}:
        return "decimal"
    return "text"


def as_kind(values: pa.ChunkedArray, carried: pa.DataType) -> pa.ChunkedArray:
    """Values in the type that carries their kind."""
    if values.type == carried:
        return values
    if pa.types.is_binary(carried) and not pa.types.is_large_binary(values.type):
        return as_kind(values, pa.string()).cast(carried)
    if pa.types.is_string(carried) and not pa.types.is_decimal(values.type):
        texts = [value if isinstance(value, str) else str(value) for value in values.drop_null().to_pylist()]
        given = iter(texts)
        return pa.chunked_array(
            [pa.array([next(given) if ok else None for ok in values.is_valid().to_pylist()], carried)]
        )
    return values.cast(carried)


def snapshot_relations(snapshot: Snapshot) -> list[Relation]:
    """The tables of a snapshot of bronze or silver; structs as their fields, without what ingestion added."""
    found = []
    declared: Mapping[str, str] = snapshot.details.get("keys", {})
    for name, rows in snapshot.tables().items():
        types = [(c["name"], c["type"]) for c in snapshot.manifest["tables"][name]["schema"]]
        own = {column for column, _ in types}

        def raw(columns: Sequence[str], name: str = name, own: Collection[str] = own) -> Iterator[pa.Table]:
            tops = list(dict.fromkeys(c if c in own else c.rpartition(".")[0] for c in columns))
            for shard in snapshot.read(name, tops):
                yield pa.table(dict(unfold(shard))).select(list(columns))

        added = {FAULT, *(_of_silver(own) if snapshot.manifest["layer"] == "silver" else ())}
        names = [column for column, kind in types if column not in added and not kind.startswith("list")]
        shards = snapshot.shards(name)
        head = snapshot.read_shard(shards[0], names) if shards else pa.table({column: [] for column in names})
        columns = tuple(column for column, _ in unfold(head))
        found.append(Relation(name, columns, rows, raw, key=(declared[name],) if name in declared else ()))
    return found


def _of_silver(columns: Collection[str]) -> set[str]:
    """Columns of a silver table that silver made: where a row is split, and its marks."""
    marks = {f"{column}{mark}" for column in columns for mark in (NEAR, DISTANCE, LANGUAGE)}
    return {"split", "concept", MODALITY, *(marks & set(columns))}


def database_relations(text: str, folder: Path, tables: Sequence[str] = ()) -> list[Relation]:
    """The tables of a database, all of the default schema unless some are named.

    Raises:
        SourceError: a URL that cannot be used, a database that cannot be read, or a table that is not there.
    """
    url = database_url(folder, "the source", text)
    from sqlalchemy import func, inspect, select, table
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with reading(url, folder) as connection:
            seen = inspect(connection)
            names = seen.get_table_names()
            absent = [name for name in tables if name not in names]
            if absent:
                raise SourceError(f"{text} has no table {absent[0]!r}; its tables are {', '.join(names)}.")
            found = []
            for name in [name for name in names if not tables or name in tables]:
                columns = tuple(str(column["name"]) for column in seen.get_columns(name))
                key = tuple(seen.get_pk_constraint(name)["constrained_columns"])
                declared = tuple(
                    Declared(tuple(f["constrained_columns"]), f["referred_table"], tuple(f["referred_columns"]))
                    for f in seen.get_foreign_keys(name)
                )
                rows = connection.execute(select(func.count()).select_from(table(name))).scalar_one()
                found.append(Relation(name, columns, rows, _reader(url, folder, name), {}, key, declared))
            return found
    except SQLAlchemyError as error:
        raise _unreadable(text, error) from error


def spooled(relation: Relation, folder: Path) -> Relation:
    """The table copied into a folder, a Parquet file a batch: it is read several times, and a database is slow at that.

    What is found then holds of one state of the table, whatever is written to it meanwhile.
    """
    folder.mkdir(parents=True)
    files = []
    rows = 0
    for number, batch in enumerate(relation.raw(relation.columns)):
        files.append(folder / f"{number:06d}.parquet")
        pq.write_table(batch, files[-1], compression="zstd", compression_level=1)
        rows += batch.num_rows

    def raw(columns: Sequence[str]) -> Iterator[pa.Table]:
        for file in files:
            yield pq.ParquetFile(file).read(columns=list(columns), use_threads=False)

    return replace(relation, rows=rows, raw=raw)


def _unreadable(name: str, error: Exception) -> SourceError:
    reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    return SourceError(f"{name} cannot be read ({reason}); mend the URL or the database.")


def _reader(url: URL, folder: Path, name: str) -> Callable[[Sequence[str]], Iterator[pa.Table]]:
    def raw(columns: Sequence[str]) -> Iterator[pa.Table]:
        from sqlalchemy import column, select, table
        from sqlalchemy.exc import SQLAlchemyError

        query: Any = select(*(column(c) for c in columns)).select_from(table(name))
        try:
            with reading(url, folder) as connection:
                found = connection.execution_options(stream_results=True).execute(query)
                while rows := found.fetchmany(BATCH_ROWS):
                    yield pa.table({c: _array([row[n] for row in rows]) for n, c in enumerate(columns)})
        except SQLAlchemyError as error:
            raise _unreadable(f"{url.render_as_string()}#{name}", error) from error

    return raw


def _array(values: Sequence[Any]) -> pa.Array:
    """Values of a database as Arrow has them; of several types, as texts."""
    types = {type(value) for value in values if value is not None}
    if types <= {int} and all(-(2**63) <= value < 2**63 for value in values if value is not None):
        return pa.array(values, pa.int64())
    if types <= {int, float}:
        return pa.array([None if v is None else float(v) for v in values], pa.float64())
    if types == {bool}:
        return pa.array(values, pa.bool_())
    if types <= {Decimal, int} and types:
        return pa.array([None if v is None else Decimal(v) for v in values])
    if types & {bytes, memoryview}:  # texts among bytes become bytes: the other way could lose some
        return pa.array([v if v is None or isinstance(v, bytes) else _bytes(v) for v in values], pa.binary())
    return pa.array([None if v is None else _text(v) for v in values], pa.string())


def _text(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return str(value)


def _bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, memoryview) else _text(value).encode()


def _kind(given: pa.ChunkedArray) -> Kind:
    kind = given.type
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "number"
    if pa.types.is_decimal(kind):
        return "decimal"
    if pa.types.is_boolean(kind):
        return "boolean"
    if not pa.types.is_string(kind):
        return "text"
    for name, pattern in PATTERNS.items():
        if pc.all(pc.match_substring_regex(given, pattern)).as_py() and _parses(given, name):
            return name
    return "text"


def _parses(given: pa.ChunkedArray, kind: Kind) -> bool:
    if kind not in PARSED:
        return True
    try:
        given.cast(PARSED[kind])
    except pa.ArrowInvalid:  # 2024-02-31
        return False
    return True
