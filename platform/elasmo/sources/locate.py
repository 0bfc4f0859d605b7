"""The files that a contract's `path` names: beside the contract, at an absolute path, or behind a URL of fsspec.

A relative path never leaves the dataset's folder, by `..` or by a link: an outside file is named by its absolute path,
on purpose.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from elasmo.sources.files import inside
from elasmo.sources.source import SourceError
from elasmo.stages.stage_ledger import at_part

BLOCK_BYTES = 1 << 20
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
"""What reading a file raises that is not there or, compressed, not whole."""


@dataclass(frozen=True)
class SourceFile:
    """A file of a source: `name` is what sentences and manifests call it, `path` where `fs` has it."""

    name: str
    path: str
    fs: fsspec.AbstractFileSystem = field(repr=False, compare=False)

    @contextmanager
    def open(self, compression: str | None = None) -> Iterator[IO[bytes]]:
        """The file's bytes, decompressed when `compression` is `infer` and the name says so.

        Raises:
            SourceError: the file cannot be opened or read.
        """
        at_part(self.name)
        with self._opened(compression) as file:
            yield file
        at_part(None)

    def read(self) -> bytes:
        with self._opened() as file:
            return bytes(file.read())

    def sha256(self) -> str:
        """Hash of the file's bytes."""
        digest = hashlib.sha256()
        with self._opened() as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
        return digest.hexdigest()

    @contextmanager
    def _opened(self, compression: str | None = None) -> Iterator[IO[bytes]]:
        try:
            with self.fs.open(self.path, "rb", compression=compression) as file:
                yield file
        except DAMAGE as error:
            raise self.broken(error) from error

    def exists(self) -> bool:
        return bool(self.fs.isfile(self.path))

    def beside(self, path: str) -> SourceFile | None:
        """The file at `path` relative to this one's folder, None where it leaves that folder by `..` or by a link."""
        name, own = (text.rpartition("/")[0] for text in (self.name, self.path))
        local = isinstance(self.fs, LocalFileSystem)
        if not inside(path) or (local and not Path(own, path).resolve().is_relative_to(Path(own).resolve())):
            return None
        return SourceFile(f"{name}/{path}" if name else path, f"{own}/{path}", self.fs)

    def broken(self, why: object, what: str = "a file") -> SourceError:
        """The sentence on a file that cannot be read."""
        reason = str(getattr(why, "strerror", None) or why).strip().rstrip(".").splitlines()
        named = reason[0] if reason else type(why).__name__
        return SourceError(
            f"{self.name} is not {what} that can be read ({named}); restore the file, or take it out of the "
            "contract's `path`."
        )


@contextmanager
def open_text(file: SourceFile, encoding: str) -> Iterator[io.TextIOWrapper]:
    """The text of a file, without a byte order mark; bytes that are not UTF-8 become lone surrogates (PEP 383)."""
    utf8 = encoding == "utf-8"
    with file.open(compression="infer") as raw:
        encoding, errors = ("utf-8-sig", "surrogateescape") if utf8 else (encoding, "strict")
        with io.TextIOWrapper(raw, encoding=encoding, errors=errors, newline="") as text:
            try:
                yield text
            except UnicodeDecodeError as error:
                raise file.broken(f"a byte at {error.start} of a block is not {encoding}", "a text file") from None


def locate(folder: Path, key: str, path: str, suffixes: Sequence[str]) -> list[SourceFile]:
    """Files that `path` names, in the order of their names; of a folder those that end with one of `suffixes`.

    Args:
        folder: the dataset's folder.
        key: the contract's key that holds `path`, for sentences.
        suffixes: endings of the format; empty takes every file.

    Raises:
        SourceError: a path that leaves the folder or names no file, or a URL whose file system is not there.
    """
    root = folder.resolve()
    fs, found, is_folder = _listed(root, key, path)
    if is_folder and suffixes:
        found = [place for place in found if place.endswith(tuple(suffixes))]
    files = [SourceFile(_name(place, root, fs, path), place, fs) for place in sorted(found)]
    if not files:
        what = f" that ends with {' or '.join(suffixes)}" if is_folder and suffixes else ""
        raise SourceError(
            f"{key} is {path!r}, which names no file{what}; give a file, a glob or a folder that has some."
        )
    return files


def _listed(root: Path, key: str, path: str) -> tuple[fsspec.AbstractFileSystem, list[str], bool]:
    """The file system, every file that `path` names, and whether it names a folder."""
    parts = urlsplit(path) if "://" in path else None
    if ".." in path.replace("\\", "/").split("/"):
        raise SourceError(
            f"{key} is {path!r}, which leaves the dataset's folder by '..'; name the absolute path instead."
        )
    if parts is not None and (parts.password or "::" in path):
        raise SourceError(
            f"{key} holds {'a password' if parts.password else 'chained URLs'}; give one plain URL, and credentials as "
            f"the file system of {parts.scheme}:// takes them."
        )
    try:
        fs, place = url_to_fs(path if parts is not None or Path(path).is_absolute() else str(root / path))
        is_folder = fs.isdir(place)
        if is_folder:
            found = [str(p) for p in fs.find(place)]
        elif fs.isfile(place):
            found = [str(place)]
        else:
            found = [str(p) for p in fs.glob(place) if fs.isfile(p)]
    except (ImportError, ValueError, OSError) as error:
        raise SourceError(f"{key} is {path!r}, which cannot be reached ({error}); mend the URL or the path.") from error
    if parts is None and not Path(path).is_absolute():
        outside = [p for p in found if not Path(p).resolve().is_relative_to(root)]
        if outside:
            raise SourceError(
                f"{key} is {path!r}, but {outside[0]} is a link that leaves the dataset's folder; name the "
                "absolute path."
            )
    return fs, found, is_folder


def _name(place: str, root: Path, fs: fsspec.AbstractFileSystem, path: str) -> str:
    if "://" in path:
        return str(fs.unstrip_protocol(place)).split("?")[0]
    return Path(place).relative_to(root).as_posix() if Path(place).is_relative_to(root) else place
