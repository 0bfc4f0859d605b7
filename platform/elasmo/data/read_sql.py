"""A table or query of a SQL database, copied into the lake in chunks that a killed ingestion goes on from.

A chunk is the next `chunk_rows` rows in the order of the key column (keyset pagination: WHERE key > last ORDER BY key).
It stands once its file and then `progress.json`, which holds the last key, are on disk; a copy that was killed goes on
behind the last chunk that stands. At the end the database's own COUNT(*) must equal the rows that were copied. The
checksum is a chain over rows, sha256(previous + row), so it depends neither on chunks nor on interruptions.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from elasmo.data.database import database_url, reading
from elasmo.data.manifest import canonical_hash
from elasmo.data.origin import SqlOrigin
from elasmo.data.source import SourceError

if TYPE_CHECKING:
    from sqlalchemy import ColumnClause, Connection, FromClause

KEY_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int, "str": str, "float": float, "Decimal": Decimal, "UUID": uuid.UUID,
    "datetime": datetime.datetime.fromisoformat, "date": datetime.date.fromisoformat,
}  # fmt: skip
START = hashlib.sha256().hexdigest()
PROGRESS, LOCK = "progress.json", "lock"

Landed = Mapping[str, str | bytes | None]
Land = Callable[[Mapping[str, Any], str], Landed]
"""Makes a landed row of a database row and the text of its key."""


@dataclass(frozen=True)
class Progress:
    """What stands of a copy: chunks, rows, [type, text] of the last key, and the checksum up to there."""

    chunks: int = 0
    rows: int = 0
    last: tuple[str, str] | None = None
    checksum: str = START


class SqlCopy:
    """The copy of one table of a contract in the lake, under a name that says what it is a copy of."""

    def __init__(
        self,
        folder: Path,
        dataset: Path,
        at: str,
        origin: SqlOrigin,
        landed: Mapping[str, bool],
        wanted: Sequence[str],
    ) -> None:
        """Opens nothing yet.

        Args:
            folder: where the dataset's copies lie in the lake.
            dataset: the dataset's folder.
            at: the contract's key of the origin, for sentences.
            origin: what to copy.
            landed: columns of a landed row, True for bytes.
            wanted: the database's columns besides the key.
        """
        self.dataset = dataset
        self.at = at
        self.origin = origin
        self.url = database_url(dataset, f"{at}.url", origin.url)
        self.wanted = list(dict.fromkeys([origin.key, *wanted]))
        identity = [self.name, origin.model_dump(exclude={"chunk_rows"}), dict(landed)]
        self.folder = folder / canonical_hash(identity)[:16]
        self.schema = pa.schema([(name, pa.binary() if heavy else pa.string()) for name, heavy in landed.items()])
        self._lock: IO[bytes] | None = None

    @property
    def name(self) -> str:
        """What was copied, without credentials."""
        return f"{self.url.render_as_string()}#{self.origin.table or 'query'}"

    def complete(self, land: Land) -> Progress:
        """Copies what is not there yet.

        Raises:
            SourceError: the database cannot be read, the key is not unique, or rows were lost on the way.
        """
        from sqlalchemy.exc import SQLAlchemyError

        self._hold()
        try:
            with reading(self.url, self.dataset) as connection:
                self._refuse_absent(connection)
                progress = self._copy(connection, land)
                self._verify(connection, progress)
        except SQLAlchemyError as error:
            reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            raise SourceError(
                f"{self.at}: {self.name} cannot be read ({reason}); mend the contract or the database."
            ) from error
        return progress

    def rows(self) -> Iterator[Landed]:
        """The copied rows, in the order of the key; refused where a byte of the copy has changed since.

        Raises:
            SourceError: a damaged copy, which is dropped.
        """
        progress, checksum = self.progress(), START
        try:
            for number in range(progress.chunks):
                rows = pq.ParquetFile(self._chunk(number)).read(use_threads=False).to_pylist()
                checksum = chained(checksum, rows)
                yield from rows
            if checksum != progress.checksum:
                raise ValueError("the checksum differs")
        except (pa.ArrowException, ValueError, OSError) as error:
            self.discard()
            raise SourceError(f"{self.at}: the copy in {self.folder} is damaged ({error}); ingest again.") from error

    def progress(self) -> Progress:
        """What stands on disk."""
        path = self.folder / PROGRESS
        if not path.is_file():
            return Progress()
        tree = json.loads(path.read_text())
        return Progress(**{**tree, "last": tree["last"] and tuple(tree["last"])})

    def discard(self) -> None:
        """Deletes the copy, so that the next one starts from the database as it then is."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.unlock()

    def unlock(self) -> None:
        """Lets other processes go on with what stands."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _hold(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = open(self.folder / LOCK, "wb")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise SourceError(f"{self.at}: another process is copying {self.name}; wait until it has ended.") from None
        self._lock = lock

    def _copy(self, connection: Connection, land: Land) -> Progress:
        from sqlalchemy import select

        source = self._source()
        column = source.c[self.origin.key]
        progress = self.progress()
        while True:
            query = select(source).order_by(column).limit(self.origin.chunk_rows)
            if progress.last is not None:
                kind, text = progress.last
                query = query.where(column > KEY_TYPES[kind](text))
            found = [dict(row) for row in connection.execute(query).mappings()]
            if not found:
                return progress
            keys = [row[self.origin.key] for row in found]
            self._refuse_keys(keys)
            progress = self._keep(
                progress, [land(row, str(key)) for row, key in zip(found, keys, strict=True)], keys[-1]
            )

    def _keep(self, progress: Progress, rows: Sequence[Landed], last: Any) -> Progress:
        """Writes a chunk, then that it stands."""
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), self.schema), sink, compression="zstd", compression_level=1)
        _write(self._chunk(progress.chunks), sink.getvalue().to_pybytes())
        made = replace(
            progress,
            chunks=progress.chunks + 1,
            rows=progress.rows + len(rows),
            last=(type(last).__name__, last.isoformat() if isinstance(last, datetime.date) else str(last)),
            checksum=chained(progress.checksum, rows),
        )
        _write(self.folder / PROGRESS, json.dumps(asdict(made)).encode())
        return made

    def _verify(self, connection: Connection, progress: Progress) -> None:
        from sqlalchemy import func, select

        counted = connection.execute(select(func.count()).select_from(self._source())).scalar_one()
        if counted != progress.rows:
            self.discard()
            raise SourceError(
                f"{self.at}: {self.name} counts {counted} rows, but {progress.rows} were copied; ingest again "
                f"while nothing writes to it, and with a `key` that is unique and never null ({self.origin.key!r} now)."
            )

    def _refuse_keys(self, keys: Sequence[Any]) -> None:
        if any(key is None for key in keys) or len(set(keys)) < len(keys):
            self.discard()
            what = "is null in a row" if any(key is None for key in keys) else "has a value twice"
            raise SourceError(
                f"{self.at}.key: column {self.origin.key!r} of {self.name} {what}; name one that is unique "
                "and never null."
            )
        unknown = type(keys[-1]).__name__
        if unknown not in KEY_TYPES:
            raise SourceError(f"{self.at}.key: values are {unknown}; keys may be {', '.join(KEY_TYPES)}.")

    def _refuse_absent(self, connection: Connection) -> None:
        """A column that is not there: SQLite would take its quoted name for a text."""
        from sqlalchemy import select, text

        there = list(connection.execute(select(text("*")).select_from(self._source()).limit(0)).keys())
        absent = [name for name in self.wanted if name not in there]
        if absent:
            raise SourceError(
                f"{self.at}: {self.name} has no column {absent[0]!r}; its columns are {', '.join(there)}: take the "
                "column out of the contract, or map one to it with `rename`."
            )

    def _source(self) -> FromClause:
        from sqlalchemy import column, table, text

        columns: list[ColumnClause[Any]] = [column(name) for name in self.wanted]
        if self.origin.query is not None:
            return text(self.origin.query.strip().rstrip(";")).columns(*columns).subquery("source")
        schema, _, name = (self.origin.table or "").rpartition(".")
        return table(name, *columns, schema=schema or None)

    def _chunk(self, number: int) -> Path:
        return self.folder / f"chunk-{number:06d}.parquet"


def chained(checksum: str, rows: Sequence[Landed]) -> str:
    """The checksum of landed rows behind those of `checksum`: sha256(previous + values, each with its length)."""
    for row in rows:
        digest = hashlib.sha256(checksum.encode())
        for value in row.values():
            content = value.encode() if isinstance(value, str) else value
            digest.update(b"-" if content is None else b"%d:%b" % (len(content), content))
        checksum = digest.hexdigest()
    return checksum


def _write(path: Path, content: bytes) -> None:
    """A file that is there whole or not at all."""
    draft = path.with_name(f".{path.name}")
    with open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
