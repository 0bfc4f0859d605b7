"""WebDataset shards: tar files, optionally gzipped, in which neighbours of the same name are a record.

A column per ending (cat.jpg, cat.txt, cat.seg.png: jpg, txt, seg.png), `__key__` the name, and the fields of a .json.
"""

from __future__ import annotations

import gzip
import re
import tarfile
from collections.abc import Iterator, Sequence
from typing import IO

from elasmo.sources.locate import DAMAGE, SourceFile
from elasmo.sources.origin import FilesOrigin
from elasmo.sources.read_folder import columns, is_pickle
from elasmo.sources.source import SourceError
from elasmo.sources.source_row import SourceRow

SUFFIXES = (".tar", ".tar.gz", ".tgz")
MEMBER = re.compile(r"^((?:.*/)?[^/.]+)\.([^/]*)$")
GZIP_MAGIC = b"\x1f\x8b"


def read(origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceRow]:
    """The records of all shards, in their order."""
    for file in files:
        yield from records(file)


def records(file: SourceFile) -> Iterator[SourceRow]:
    """The records of one shard.

    Raises:
        SourceError: the shard is cut or damaged.
    """
    name, parts = None, dict[str, bytes]()
    for member, ending, content in _members(file):
        if name not in (None, member):
            yield _record(file, name, parts)
            parts = {}
        if ending in parts:
            raise file.broken(f"{member}.{ending} is there twice", "a WebDataset shard")
        name, parts[ending] = member, content
    if name is not None:
        yield _record(file, name, parts)


def _record(file: SourceFile, name: str | None, parts: dict[str, bytes]) -> SourceRow:
    return SourceRow(f"{file.name}:{name}", {"__key__": name, **columns(parts, parts)})


def _members(file: SourceFile) -> Iterator[tuple[str, str, bytes]]:
    """(record, ending, content) of each regular member; a pickle's content is not read."""
    with file.open() as raw:
        zipped = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        opened: IO[bytes] = gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[assignment]
        try:
            with tarfile.open(fileobj=opened, mode="r:") as shard:
                for member in shard:
                    split = MEMBER.match(member.name)
                    if not member.isreg() or split is None or member.name.startswith("__"):
                        continue
                    ending = split[2].lower()
                    held = None if is_pickle(ending) else shard.extractfile(member)
                    yield split[1], ending, held.read() if held is not None else b""
                    shard.members = []  # type: ignore[attr-defined]  # tarfile would keep the header of every member
                _refuse_cut(file, opened, shard.offset)
        except (tarfile.TarError, UnicodeError, *DAMAGE) as error:
            raise file.broken(error, "a tar shard") from error


def _refuse_cut(file: SourceFile, opened: IO[bytes], offset: int) -> None:
    """Refuses a shard whose headers do not end with the block of zeros that closes every tar (POSIX ustar).

    tarfile takes a damaged header behind the first one for the end, and records behind it would be lost unseen.
    """
    opened.seek(offset)
    if opened.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
        raise SourceError(
            f"{file.name} is cut or damaged at byte {offset}, where a member or the end of the tar shard should be; "
            "restore the file, or take it out of the contract's `path`."
        )
