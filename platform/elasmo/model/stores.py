"""Where checkpoints lie: a small interface over named files, which a local folder and any fsspec URL fulfil.

Two writes are told apart. `write` streams a large file, which nobody may read before a manifest names it. `put`
replaces a small file at once: a reader sees the old content or the new, never a part; one `put` commits a checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import fsspec
from fsspec.implementations.local import LocalFileSystem

ATOMIC_PUT = frozenset({"memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "r2"})
"""Protocols of fsspec whose PUT of one object is atomic; elsewhere a file is written aside and moved into place."""


class StoreError(ValueError):
    """A place that cannot be opened, named with what would do."""


class Store(Protocol):
    """Named files in one place. Names have no slashes; `child` is the place below."""

    @property
    def url(self) -> str:
        """What names the place in messages and manifests, and opens it again."""

    @property
    def name(self) -> str:
        """The last part of its URL."""

    def child(self, name: str) -> Store:
        """The place below of that name; it needs not exist."""

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Streams a file and makes it durable; returns its bytes."""

    def put(self, name: str, data: bytes) -> None:
        """Replaces a file atomically and durably."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of a file, fewer where it ends before; FileNotFoundError if there is none."""

    def size(self, name: str) -> int:
        """Bytes of a file; FileNotFoundError if there is none."""

    def files(self) -> list[str]:
        """Names of the files in this place, sorted; none if the place does not exist."""

    def children(self) -> list[str]:
        """Names of the places directly below, sorted."""

    def remove(self, name: str) -> None:
        """Removes a file, if there is one."""

    def clear(self) -> None:
        """Removes the place and all below it."""


def open_store(place: str | Path | Store) -> Store:
    """The store at a path or a URL of fsspec, such as `s3://bucket/runs`.

    Raises:
        StoreError: no such protocol, or its package is not installed.
    """
    if not isinstance(place, str | Path):
        return place
    if isinstance(place, Path) or "://" not in place:
        return LocalStore(place)
    try:
        fs, path = fsspec.url_to_fs(place)
    except (ImportError, ValueError) as error:
        raise StoreError(f"{place} cannot be opened: {error}; name a folder, or install that package.") from None
    return LocalStore(path) if isinstance(fs, LocalFileSystem) else FsspecStore(fs, path)


class LocalStore:
    """A folder. Everything written is synced before it gets its name, and so is the folder after."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def url(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    def child(self, name: str) -> LocalStore:
        return LocalStore(self.path / name)

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.path / f"{name}.{os.getpid()}.part"
        try:
            with partial.open("wb") as out:
                size = sum(out.write(chunk) for chunk in chunks)
                out.flush()
                os.fsync(out.fileno())
            os.replace(partial, self.path / name)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_folder(self.path)
        return size

    def put(self, name: str, data: bytes) -> None:
        self.write(name, (data,))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        with (self.path / name).open("rb") as file:
            file.seek(start)
            return file.read(-1 if stop is None else stop - start)

    def size(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def files(self) -> list[str]:
        return sorted(entry.name for entry in self._entries() if entry.is_file())

    def children(self) -> list[str]:
        return sorted(entry.name for entry in self._entries() if entry.is_dir())

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def clear(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.path) as entries:
                yield from list(entries)
        except FileNotFoundError:
            return


class FsspecStore:
    """A place on a file system of fsspec. Listings are never cached: other processes write here too."""

    def __init__(self, fs: Any, path: str) -> None:
        self.fs, self.path = fs, path.rstrip("/")
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
        self._atomic_put = not ATOMIC_PUT.isdisjoint(protocols)

    @property
    def url(self) -> str:
        return str(self.fs.unstrip_protocol(self.path))

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    def child(self, name: str) -> FsspecStore:
        return FsspecStore(self.fs, f"{self.path}/{name}")

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        self.fs.makedirs(self.path, exist_ok=True)
        with self.fs.open(self._at(name), "wb") as out:
            size = 0
            for chunk in chunks:
                out.write(chunk)
                size += len(chunk)
        return size

    def put(self, name: str, data: bytes) -> None:
        self.fs.makedirs(self.path, exist_ok=True)
        if self._atomic_put:
            self.fs.pipe_file(self._at(name), data)
            return
        self.fs.pipe_file(self._at(f"{name}.part"), data)
        self.fs.mv(self._at(f"{name}.part"), self._at(name))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        return bytes(self.fs.cat_file(self._at(name), start=start, end=stop))

    def size(self, name: str) -> int:
        self.fs.invalidate_cache(self.path)
        return int(self.fs.info(self._at(name))["size"])

    def files(self) -> list[str]:
        return [name for name, kind in self._entries() if kind == "file"]

    def children(self) -> list[str]:
        return [name for name, kind in self._entries() if kind == "directory"]

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.fs.rm_file(self._at(name))

    def clear(self) -> None:
        with suppress(FileNotFoundError):
            self.fs.rm(self.path, recursive=True)

    def _entries(self) -> list[tuple[str, str]]:
        self.fs.invalidate_cache(self.path)
        try:
            found = self.fs.ls(self.path, detail=True)
        except FileNotFoundError:
            return []
        return sorted((item["name"].rstrip("/").rsplit("/", 1)[-1], item["type"]) for item in found)

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"


def sync_folder(path: Path) -> None:
    """Makes names that were given in a folder survive a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
