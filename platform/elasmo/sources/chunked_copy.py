"""Rows of a table that cannot be read again from its middle, copied into the lake chunk by chunk.

A chunk stands once its file and then `progress.json`, which holds its last key, are on disk; a copy that was killed
goes on behind the last chunk that stands. The checksum is a chain over rows, sha256(previous + row), so it depends
neither on the size of chunks nor on interruptions. One process at a time holds a copy.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from elasmo.sources.source import SourceError

START = hashlib.sha256().hexdigest()
PROGRESS, LOCK = "progress.json", "lock"

Landed = Mapping[str, str | bytes | None]


@dataclass(frozen=True)
class Progress:
    """What stands of a copy: chunks, rows, [type, text] of the last key, and the checksum up to there."""

    chunks: int = 0
    rows: int = 0
    last: tuple[str, str] | None = None
    checksum: str = START


class ChunkedCopy:
    """A copy in a folder of its own; `name` is what sentences call the table that it is a copy of."""

    def __init__(self, folder: Path, name: str, landed: Mapping[str, bool]) -> None:
        """`landed` are the columns of a landed row, True for bytes."""
        self.folder = folder
        self.name = name
        self.schema = pa.schema([(column, pa.binary() if heavy else pa.string()) for column, heavy in landed.items()])
        self._lock: IO[bytes] | None = None

    def hold(self) -> None:
        """Takes the copy for this process, until `unlock` or `discard`.

        Raises:
            SourceError: another process has it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.folder)
        if self._lock is None:
            raise SourceError(f"{self.name}: another process is copying it into this lake; wait until that has ended.")

    def progress(self) -> Progress:
        """What stands on disk; nothing does where that cannot be read."""
        try:
            tree = json.loads((self.folder / PROGRESS).read_text())
            return Progress(**{**tree, "last": tree["last"] and tuple(tree["last"])})
        except (OSError, ValueError, TypeError, KeyError):
            return Progress()

    def keep(self, rows: Sequence[Landed], last: tuple[str, str]) -> Progress:
        """Writes the next chunk, then that it stands."""
        progress = self.progress()
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), self.schema), sink, compression="zstd", compression_level=1)
        _write(self.chunk(progress.chunks), sink.getvalue().to_pybytes())
        made = replace(
            progress,
            chunks=progress.chunks + 1,
            rows=progress.rows + len(rows),
            last=last,
            checksum=chained(progress.checksum, rows),
        )
        _write(self.folder / PROGRESS, json.dumps(asdict(made)).encode())
        return made

    def rows(self) -> Iterator[Landed]:
        """The rows that stand, in the order in which they were kept; at the end they are held against the checksum.

        Raises:
            SourceError: a damaged copy, which is dropped.
        """
        progress, checksum = self.progress(), START
        try:
            for number in range(progress.chunks):
                rows = pq.ParquetFile(self.chunk(number)).read(use_threads=False).to_pylist()
                checksum = chained(checksum, rows)
                yield from rows
            if checksum != progress.checksum:
                raise ValueError("the checksum differs")
        except (pa.ArrowException, ValueError, OSError) as error:
            self.discard()
            raise SourceError(f"{self.name}: its copy in {self.folder} is damaged ({error}); ingest again.") from error

    def discard(self) -> None:
        """Deletes the copy, so that the next one starts anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.unlock()

    def unlock(self) -> None:
        """Lets other processes go on with what stands."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def chunk(self, number: int) -> Path:
        """The file of a chunk."""
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


def sweep(copies: Path) -> None:
    """Deletes the copies that nobody holds: those of contracts that have changed since."""
    for folder in copies.glob("*/"):
        lock = _locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()


def _locked(folder: Path) -> IO[bytes] | None:
    """The lock of a copy, None where another process, or another object of this one, has it."""
    lock = open(folder / LOCK, "wb")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _write(path: Path, content: bytes) -> None:
    """A file that is there whole or not at all."""
    draft = path.with_name(f".{path.name}")
    with open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
