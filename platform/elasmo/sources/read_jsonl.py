"""JSON Lines (optionally gzipped): an object a line; nested values land as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from elasmo.sources.locate import SourceFile, open_text
from elasmo.sources.origin import FilesOrigin
from elasmo.sources.source_row import SourceRow

SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz")


def read(origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceRow]:
    """The objects of all files by their line; a line that is none is a faulty record."""
    for file in files:
        with open_text(file, origin.encoding) as text:
            for number, line in enumerate(text, start=1):
                if line.strip():
                    yield _row(file, f"{file.name}:{number}", line)


def _row(file: SourceFile, place: str, line: str) -> SourceRow:
    try:
        line.encode()
        tree = json.loads(line)
    except UnicodeEncodeError:
        return SourceRow(place, fault="the line is not valid UTF-8 text")
    except (ValueError, RecursionError) as error:
        return SourceRow(place, fault=f"the line is not valid JSON: {error}")
    if not isinstance(tree, dict):
        return SourceRow(place, fault=f"the line holds a {type(tree).__name__}; it must hold an object")
    return SourceRow(place, tree, file=file)
