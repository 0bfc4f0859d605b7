"""Arrow files, of the IPC file format or the stream format: a row is a record; lists and structs land as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from elasmo.data.locate import SourceFile
from elasmo.data.origin import FilesOrigin
from elasmo.data.source_row import SourceRow

SUFFIXES = (".arrow", ".feather", ".ipc")
MAGIC = b"ARROW1"


def read(origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceRow]:
    """The rows of all files, numbered from 1 in each."""
    for file in files:
        number = 0
        for batch in batches(file):
            for values in batch.to_pylist():
                number += 1
                yield SourceRow(f"{file.name}:{number}", values, file=file)


def batches(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """The record batches of a file, one in memory at a time.

    Raises:
        SourceError: the file is damaged or no Arrow file.
    """
    with file.open() as raw:
        try:
            stream = raw.read(len(MAGIC)) != MAGIC
            raw.seek(0)
            if stream:
                with pa.ipc.open_stream(raw) as reader:
                    yield from reader
            else:
                with pa.ipc.open_file(raw) as opened:
                    yield from (opened.get_batch(i) for i in range(opened.num_record_batches))
        except (pa.ArrowException, OSError) as error:
            raise file.broken(error, "an Arrow file") from error
