"""Server-sent events as OpenAI's clients read them: a `data:` line of JSON an event, ids, `[DONE]` at the end.

An event's id is its stream's id and its number there, so that a client that lost the connection can name what it has.
"""

from __future__ import annotations

import json
from typing import Any

DONE = "[DONE]"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
MEDIA_TYPE = "text/event-stream"


def event(stream_id: str, number: int, document: dict[str, Any] | str) -> bytes:
    """One event, numbered from 0."""
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return f"id: {stream_id}:{number}\ndata: {text}\n\n".encode()


def parse_event_id(event_id: str) -> tuple[str, int] | None:
    """Stream and number of an event's id, or None where it is none of ours."""
    stream_id, colon, number = event_id.rpartition(":")
    return (stream_id, int(number)) if colon and number.isdecimal() and len(number) < 10 else None
