"""Arrow files, of the IPC file format or the stream format: a row is a record; lists and structs land as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from elasmo.sources.locate import SourceFile
from elasmo.sources.origin import FilesOrigin
from elasmo.sources.source_row import Fault, SourceRow

SUFFIXES = (".arrow", ".feather", ".ipc")
MAGIC = b"ARROW1"
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
FAULTS = (ValueError, OverflowError, TypeError)


def read(origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceRow]:
    """The rows of all files, numbered from 1 in each."""
    for file in files:
        number = 0
        for batch in batches(file):
            for values in values_of(batch):
                number += 1
                yield SourceRow(f"{file.name}:{number}", values, file=file)


def values_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch; a value that Python has no object for, such as text that is not UTF-8, is a fault."""
    try:
        yield from batch.to_pylist()
    except FAULTS:
        for row in range(batch.num_rows):
            yield {name: _value(name, batch.column(i)[row]) for i, name in enumerate(batch.schema.names)}


def _value(name: str, value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return Fault(f"{name} is not valid UTF-8 text")
    except FAULTS as error:
        return Fault(f"{name} is a {value.type} that cannot be read: {error}")


def batches(file: SourceFile) -> Iterator[pa.RecordBatch]:
    """The record batches of a file, one in memory at a time.

    Raises:
        SourceError: the file is damaged or no Arrow file.
    """
    try:
        for batch in _unchecked(file):
            for column in batch.columns:
                _validate(column)
            yield batch
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        raise file.broken(error, "an Arrow file") from error


def _validate(column: pa.Array) -> None:
    """Refuses offsets that leave the column, which Arrow would follow; text that is not UTF-8 is left to its row."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.view(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
    column.validate(full=True)


def _unchecked(file: SourceFile) -> Iterator[pa.RecordBatch]:
    with file.open() as raw:
        stream = raw.read(len(MAGIC)) != MAGIC
        raw.seek(0)
        if stream:
            with pa.ipc.open_stream(raw) as reader:
                yield from reader
            raw.seek(-len(END_OF_STREAM), os.SEEK_END)
            if raw.read() != END_OF_STREAM:  # Arrow takes a cut between two batches for the end
                raise file.broken("its end-of-stream marker is not there", "an Arrow file")
        else:
            with pa.ipc.open_file(raw) as opened:
                yield from (opened.get_batch(i) for i in range(opened.num_record_batches))
