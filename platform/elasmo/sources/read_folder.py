"""A folder of media with sidecars of the same stem (cat.png, cat.txt, cat.json): a stem is a record.

Each ending is a column that holds the file's content; the fields of a .json object are columns too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from elasmo.sources.locate import SourceFile
from elasmo.sources.origin import FilesOrigin
from elasmo.sources.source_row import Fault, SourceRow

SUFFIXES = ()
TEXTS = ("txt", "json", "csv", "caption")
PICKLES = ("pkl", "pickle", "pyd", "pt", "pth", "joblib", "dill")


def read(origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceRow]:
    """A record per stem, in the order of the stems."""
    stems: dict[str, dict[str, SourceFile]] = defaultdict(dict)
    for file in files:
        folder, slash, name = file.name.rpartition("/")
        if name.startswith("."):
            continue
        stem, _, ending = name.partition(".")
        stems[folder + slash + stem][ending.lower()] = file
    for stem, parts in sorted(stems.items()):
        content = {ending: part.read() for ending, part in parts.items() if not is_pickle(ending)}
        yield SourceRow(stem, columns(content, parts, origin.encoding))


def columns(content: Mapping[str, bytes], endings: Iterable[str], encoding: str = "utf-8") -> dict[str, Any]:
    """Columns of the parts of a record, ending -> bytes; texts are decoded, and a JSON object's fields are columns."""
    found: dict[str, Any] = {}
    for ending in endings:
        if is_pickle(ending):
            found[ending] = Fault(f"{ending} is a pickle, which could run code and is never opened")
            continue
        found[ending] = _text(ending, content[ending], encoding) if ending in TEXTS else content[ending]
    fields = _fields(found.get("json"))
    return {**fields, **found}


def is_pickle(ending: str) -> bool:
    """Whether files of this ending are pickles."""
    return ending.rpartition(".")[2].lower() in PICKLES


def _text(ending: str, content: bytes, encoding: str) -> str | Fault:
    try:
        return content.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeError:
        return Fault(f"{ending} is not valid {encoding} text")


def _fields(text: object) -> dict[str, Any]:
    if not isinstance(text, str):
        return {}
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}
