"""CSV files (RFC 4180, optionally gzipped): the first line names the columns; an empty field is no value."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from elasmo.sources.locate import SourceFile, open_text
from elasmo.sources.origin import FilesOrigin
from elasmo.sources.source_row import SourceRow

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def read(origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceRow]:
    """The rows of all files by their line; a line with too few or too many fields is a faulty record."""
    for file in files:
        with open_text(file, origin.encoding) as text:
            reader = csv.reader(text, delimiter=origin.delimiter, strict=True)
            try:
                header = next(reader, [])
            except csv.Error as error:
                raise file.broken(f"its header: {error}", "a CSV file") from None
            repeated = [name for name in header if header.count(name) > 1]
            if repeated:
                raise file.broken(f"column {repeated[0]!r} is there twice", "a CSV file")
            yield from _rows(file, reader, header)


def _rows(file: SourceFile, reader: Iterator[list[str]], header: Sequence[str]) -> Iterator[SourceRow]:
    while True:
        place = f"{file.name}:{getattr(reader, 'line_num', 0) + 1}"
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield SourceRow(place, fault=f"the line is not valid CSV: {error}")
            continue
        if not fields:
            continue
        if len(fields) != len(header):
            fault = f"the line has {len(fields)} fields; the header has {len(header)}"
            yield SourceRow(place, fault=fault)
            continue
        values = {name: value or None for name, value in zip(header, fields, strict=True)}
        yield SourceRow(place, values, file=file)
