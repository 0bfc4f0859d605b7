"""What every format's reader is: a module with the endings of its files and a generator of their records.

A record that cannot be read is a SourceRow with a fault, which silver quarantines; a file that cannot is a SourceError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from elasmo.sources.locate import SourceFile
from elasmo.sources.origin import FilesOrigin
from elasmo.sources.source_row import SourceRow


class Reader(Protocol):
    """The module `read_<format>`."""

    @property
    def SUFFIXES(self) -> tuple[str, ...]:
        """Endings of the files that are taken of a folder; none takes every file."""
        ...

    @property
    def read(self) -> Read:
        """The reader itself."""
        ...


class Read(Protocol):
    """The function `read` of a reader's module."""

    def __call__(self, origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceRow]:
        """Every record of the files, in their order.

        Raises:
            SourceError: a file that is not of the format, or damaged.
        """
        ...
