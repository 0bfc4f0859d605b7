"""SQL databases that tables land from, opened for reading only: SQLite files and PostgreSQL servers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from elasmo.sources.files import inside
from elasmo.sources.source import SourceError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection

DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}


def database_url(folder: Path, key: str, text: str) -> URL:
    """The parsed URL of a contract in `folder`; `key` is the contract's key that holds it, for sentences.

    Raises:
        SourceError: a URL of another database, with a password, or of a file that is not there.
    """
    try:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError
    except ModuleNotFoundError as error:
        raise SourceError(
            f"{key}: format sql needs the Python package {error.name!r}; pip install 'elasmo[sql]'."
        ) from error
    try:
        url = make_url(text)
    except ArgumentError:
        raise SourceError(
            f"{key} is no database URL; give sqlite:///file.db or postgresql://user@host:port/database."
        ) from None
    if url.drivername not in (*DRIVERS, *DRIVERS.values()):
        raise SourceError(f"{key} is a URL of {url.drivername}; it must be one of {', '.join(DRIVERS)}.")
    if url.password is not None:
        raise SourceError(f"{key} holds a password; leave it out and give it in PGPASSWORD or ~/.pgpass.")
    if url.get_backend_name() == "sqlite":
        file = url.database or ""
        if not Path(file).is_absolute() and not inside(file):
            raise SourceError(
                f"{key} is {text!r}, whose file leaves the dataset's folder; name its absolute path instead."
            )
        if not (folder / file).is_file():
            raise SourceError(
                f"{key} is {text!r}, but {folder / file} does not exist; restore the file or mend the URL."
            )
    return url


@contextmanager
def reading(url: URL, folder: Path) -> Iterator[Connection]:
    """A connection that cannot write, in one transaction that sees the database as it is now.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database cannot be reached.
    """
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    backend = url.get_backend_name()
    if backend == "sqlite":
        path = (folder / (url.database or "")).resolve()
        engine = create_engine(f"{DRIVERS[backend]}://", creator=lambda: _open_sqlite(path), poolclass=NullPool)
        options: dict[str, object] = {}
    else:
        engine = create_engine(url.set(drivername=DRIVERS[backend]), poolclass=NullPool)
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with engine.connect() as connection:
        yield connection.execution_options(**options)


def _open_sqlite(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
    connection.text_factory = _text
    return connection


def _text(raw: bytes) -> str | bytes:
    """Text, or its bytes where it is not UTF-8: a fault of one row must not end the reading of all."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
