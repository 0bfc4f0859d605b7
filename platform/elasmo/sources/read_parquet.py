"""Parquet files: a row is a record; lists and structs land as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from elasmo.sources.locate import SourceFile
from elasmo.sources.origin import FilesOrigin
from elasmo.sources.read_arrow import values_of
from elasmo.sources.source_row import SourceRow

SUFFIXES = (".parquet",)
BATCH_ROWS = 256


def read(origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceRow]:
    """The rows of all files, numbered from 1 in each."""
    for file in files:
        number = 0
        for batch in _batches(file):
            for values in values_of(batch):
                number += 1
                yield SourceRow(f"{file.name}:{number}", values, file=file)


def _batches(file: SourceFile) -> Iterator[pa.RecordBatch]:
    with file.open() as raw:
        try:
            opened = pq.ParquetFile(raw)
            left = opened.metadata.num_rows
            for batch in opened.iter_batches(BATCH_ROWS, use_threads=False):
                left -= batch.num_rows
                yield batch
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise file.broken(error, "a Parquet file") from error
        if left:
            raise file.broken(f"{left} of its {opened.metadata.num_rows} rows are not there", "a Parquet file")
