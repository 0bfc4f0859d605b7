"""Server-sent events as OpenAI's clients read them: one `data:` line of JSON an event, `[DONE]` at the end."""

from __future__ import annotations

import json

from elasmo.serve.openai_errors import ApiError
from elasmo.serve.openai_protocol import ChatChunk

DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
MEDIA_TYPE = "text/event-stream"


def chunk_event(chunk: ChatChunk, with_usage: bool) -> bytes:
    """One chunk; `usage` appears in it (null but for the last one) only where the request asked for usage."""
    document = chunk.model_dump(mode="json", exclude={"choices"} if with_usage else {"choices", "usage"})
    document["choices"] = [
        {**choice.model_dump(mode="json", exclude={"delta"}), "delta": choice.delta.model_dump(exclude_none=True)}
        for choice in chunk.choices
    ]
    return _event(document)


def error_event(error: ApiError) -> bytes:
    """An error after the stream began, when the status line is already sent; the clients raise it."""
    return _event(error.body())


def _event(document: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
