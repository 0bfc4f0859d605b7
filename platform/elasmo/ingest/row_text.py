"""What a typed silver row is about: its modality, and the running text of its columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from elasmo.sources.contract import TableSpec

MODALITIES = ("image", "audio", "table")


def modality_of(spec: TableSpec, row: Mapping[str, Any]) -> str:
    """`image+audio` and so on, of what the row holds; `text` where it holds words and numbers alone."""
    held: set[str] = set()
    for name, column in spec.columns.items():
        if row[name] is None:
            continue
        if column.type == "messages":
            held |= {kind for segment in _segments(row[name]) for kind in segment}
        else:
            held.add("table" if column.type == "record" else column.type)
    return "+".join(kind for kind in MODALITIES if kind in held) or "text"


def text_of(spec: TableSpec, name: str, value: Any) -> tuple[str, str]:
    """(text, context) of a column: of messages their texts, and all that is no text."""
    if spec.columns[name].type != "messages":
        return str(value), ""
    segments = list(_segments(value))
    others = [segment for segment in segments if "text" not in segment]
    context = json.dumps(others, sort_keys=True) if others else ""
    return "\n".join(str(segment["text"]) for segment in segments if "text" in segment), context


def _segments(messages: str) -> Iterator[dict[str, Any]]:
    for message in json.loads(messages):
        yield from message["segments"]
