"""A table or query of a SQL database, copied into the lake in chunks that a killed ingestion goes on from.

A chunk is the next `chunk_rows` rows in the order of the key column (keyset pagination: WHERE key > last ORDER BY key).
At the end the database's own COUNT(*) must equal the rows that were copied.
"""

from __future__ import annotations

import datetime
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasmo.data.manifest import canonical_hash, code_hash
from elasmo.sources import chunked_copy, source_row
from elasmo.sources.chunked_copy import ChunkedCopy, Landed, Progress
from elasmo.sources.database import database_url, reading
from elasmo.sources.deadline import within_deadline
from elasmo.sources.origin import SqlOrigin
from elasmo.sources.source import SourceError
from elasmo.stages.stage_ledger import at_part

if TYPE_CHECKING:
    from sqlalchemy import ColumnClause, Connection, FromClause

KEY_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int, "str": str, "float": float, "Decimal": Decimal, "UUID": uuid.UUID,
    "datetime": datetime.datetime.fromisoformat, "date": datetime.date.fromisoformat,
}  # fmt: skip

Land = Callable[[Mapping[str, Any], str], Landed]
"""Makes a landed row of a database row and the text of its key."""


class SqlTable:
    """One table of a contract in its database, and its copy in the lake under a name that says what it is a copy of."""

    def __init__(
        self, copies: Path, folder: Path, at: str, origin: SqlOrigin, landed: Mapping[str, bool], wanted: Sequence[str]
    ) -> None:
        """Opens nothing yet.

        Args:
            copies: where the dataset's copies lie in the lake.
            folder: the dataset's folder.
            at: the contract's key of the origin, for sentences.
            origin: what to copy.
            landed: columns of a landed row, True for bytes.
            wanted: the database's columns besides the key.
        """
        self.folder = folder
        self.at = at
        self.origin = origin
        self.url = database_url(folder, f"{at}.url", origin.url)
        self.wanted = list(dict.fromkeys([origin.key, *wanted]))
        code = code_hash(sys.modules[__name__], chunked_copy, source_row)
        identity = canonical_hash([code, self.name, origin.model_dump(exclude={"chunk_rows"}), dict(landed)])
        self.copy = ChunkedCopy(copies / identity[:16], f"{at}: {self.name}", landed)

    @property
    def name(self) -> str:
        """What is copied; URLs hold no password."""
        return f"{self.url.render_as_string()}#{self.origin.table or 'query'}"

    def complete(self, land: Land, deadline_s: float | None = None) -> Progress:
        """Copies what is not there yet; `deadline_s` is the longest that the database may take for a chunk.

        Raises:
            SourceError: the database cannot be read or gives nothing for too long, the key is not unique, or rows were
                lost on the way.
        """
        self.copy.hold()
        for _ in within_deadline(self._steps(land), deadline_s, self._late):
            pass
        return self.copy.progress()

    def _steps(self, land: Land) -> Iterator[None]:
        """Copies chunk by chunk; stops between having a chunk and keeping it, where it may be left."""
        with self._open() as connection:
            self._refuse_absent(connection)
            for rows, last in self._chunks(connection, land):
                yield
                self.copy.keep(rows, last)
            self._verify(connection, self.copy.progress())

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        """A connection; what the database says against it is one sentence."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with reading(self.url, self.folder) as connection:
                yield connection
        except (SQLAlchemyError, UnicodeDecodeError) as error:
            reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            raise SourceError(
                f"{self.at}: {self.name} cannot be read ({reason}); mend the contract or the database."
            ) from error

    def _late(self, _: None, chunks: int) -> SourceError:
        progress = self.copy.progress()
        after = "" if progress.last is None else f" after key {progress.last[1]!r}"
        return SourceError(
            f"{self.at}: {self.name} gave no rows{after} for longer than timeouts.source_s; the {progress.rows} rows "
            "copied so far are kept, and ingesting again goes on behind them: mend the database, or raise the timeout."
        )

    def check(self) -> None:
        """Looks whether the database has the table and the columns that will be copied.

        Raises:
            SourceError: it cannot be read, or lacks one of them.
        """
        with self._open() as connection:
            self._refuse_absent(connection)

    def peek(self, rows: int) -> list[Mapping[str, Any]]:
        """Some rows of the database with all its columns, in no order; nothing is copied.

        Raises:
            SourceError: the database cannot be read.
        """
        from sqlalchemy import select, text

        with self._open() as connection:
            found = connection.execute(select(text("*")).select_from(self._source()).limit(rows))
            return [dict(row) for row in found.mappings()]

    def _chunks(self, connection: Connection, land: Land) -> Iterator[tuple[list[Landed], tuple[str, str]]]:
        """Landed rows behind those that stand, with the last key of each chunk; what is given out must be kept."""
        from sqlalchemy import select

        source = self._source()
        column = source.c[self.origin.key]
        while True:
            progress = self.copy.progress()
            at_part(f"{self.origin.table or 'query'}, chunk {progress.chunks}", self.origin.chunk_rows)
            query = select(source).order_by(column).limit(self.origin.chunk_rows)
            if progress.last is not None:
                kind, text = progress.last
                query = query.where(column > KEY_TYPES[kind](text))
            found = [dict(row) for row in connection.execute(query).mappings()]
            if not found:
                at_part(None)
                return
            keys = [row[self.origin.key] for row in found]
            self._refuse_keys(keys)
            yield [land(row, str(key)) for row, key in zip(found, keys, strict=True)], _tagged(keys[-1])

    def _verify(self, connection: Connection, progress: Progress) -> None:
        from sqlalchemy import func, select

        counted = connection.execute(select(func.count()).select_from(self._source())).scalar_one()
        if counted != progress.rows:
            self.copy.discard()
            raise SourceError(
                f"{self.at}: {self.name} counts {counted} rows, but {progress.rows} were copied; ingest again "
                f"while nothing writes to it, and with a `key` that is unique and never null ({self.origin.key!r} now)."
            )

    def _refuse_keys(self, keys: Sequence[Any]) -> None:
        kinds = {type(key).__name__ for key in keys if key is not None}
        if not kinds <= set(KEY_TYPES):
            what = f"holds {', '.join(sorted(kinds - set(KEY_TYPES)))}; keys may be {', '.join(KEY_TYPES)}"
        elif None in keys:
            what = "is null in a row"
        elif len(set(keys)) < len(keys):
            what = "has a value twice"
        else:
            return
        self.copy.discard()
        raise SourceError(
            f"{self.at}.key: column {self.origin.key!r} of {self.name} {what}; name a column that is unique and never "
            "null."
        )

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


def _tagged(key: Any) -> tuple[str, str]:
    """A key as its type and a text that this type reads back as the same key."""
    return type(key).__name__, key.isoformat() if isinstance(key, datetime.date) else str(key)
