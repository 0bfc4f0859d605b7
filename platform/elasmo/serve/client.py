"""A small streaming client of the endpoint, standard library only, that times what it sees: TTFT and TPOT."""

from __future__ import annotations

import base64
import json
import mimetypes
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ChatError(ValueError):
    """The endpoint cannot be reached or refused the request; its own sentence where it gave one."""


@dataclass
class Answer:
    """A streamed answer, filled in as it arrives.

    Attributes:
        text: so far.
        finish_reason: `stop` or `length`, at the end.
        usage: token counts, at the end.
        ttft_ms: from sending the request to the first text.
        total_ms: to the end.
    """

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    ttft_ms: float | None = None
    total_ms: float | None = None

    @property
    def tpot_ms(self) -> float | None:
        """Mean milliseconds a token after the first; None below two tokens."""
        tokens = self.usage.get("completion_tokens", 0)
        if self.ttft_ms is None or self.total_ms is None or tokens < 2:
            return None
        return (self.total_ms - self.ttft_ms) / (tokens - 1)


def user_message(
    question: str,
    images: Sequence[Path] = (),
    audio: Sequence[Path] = (),
    record: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One user message: media first, the question last.

    Raises:
        ChatError: a file cannot be read or its name does not say what it is.
    """
    parts: list[dict[str, Any]] = []
    for path in images:
        kind = mimetypes.guess_type(path.name)[0] or ""
        if not kind.startswith("image/"):
            raise ChatError(f"--image {path} does not have an image's file name; rename it to .png, .jpg or the like.")
        parts.append({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{_base64(path)}"}})
    for path in audio:
        suffix = path.suffix.lower().removeprefix(".")
        if suffix not in ("wav", "flac"):
            raise ChatError(f"--audio {path} is not a .wav or .flac file; convert it.")
        parts.append({"type": "input_audio", "input_audio": {"data": _base64(path), "format": suffix}})
    if record is not None:
        parts.append({"type": "input_table", "record": dict(record)})
    return {"role": "user", "content": [*parts, {"type": "text", "text": question}]}


def parse_record(text: str) -> dict[str, Any]:
    """The record given as JSON text.

    Raises:
        ChatError: it is not a JSON object.
    """
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ChatError(f"--record {text!r} is not valid JSON ({error}); quote it as '{{\"field\": 1}}'.") from None
    if not isinstance(record, dict):
        raise ChatError(f"--record {text!r} is a JSON {type(record).__name__}; it must be an object of fields.")
    return record


def served_model(url: str, timeout_s: float = 10.0, key: str | None = None) -> str:
    """Name of the model the endpoint serves; `key` as in `stream_chat`.

    Raises:
        ChatError: nothing that speaks OpenAI's API answers there.
    """
    with _open(urllib.request.Request(f"{url.rstrip('/')}/v1/models", headers=_headers(key)), timeout_s) as response:
        try:
            return str(json.load(response)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise ChatError(f"{url} answers, but not with OpenAI's API; give the address of `elasmo serve`.") from None


def stream_chat(
    url: str,
    message: Mapping[str, Any],
    answer: Answer,
    parameters: Mapping[str, Any],
    timeout_s: float = 120.0,
    key: str | None = None,
) -> Iterator[str]:
    """Pieces of text as they arrive; `answer` collects them and what came with them.

    Args:
        url: of the endpoint.
        message: from `user_message`.
        answer: filled in.
        parameters: the request's other fields, `model` among them.
        timeout_s: longest silence of the endpoint.
        key: API key, where the endpoint asks for one.

    Raises:
        ChatError: the endpoint refused the request, or failed in the middle of it.
    """
    body = {"messages": [message], "stream": True, "stream_options": {"include_usage": True}, **parameters}
    headers = {"Content-Type": "application/json", **_headers(key)}
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/chat/completions", json.dumps(body).encode(), headers)
    began = time.perf_counter()
    with _open(request, timeout_s) as response:
        for line in response:
            field, _, data = line.decode().strip().partition(": ")
            if field != "data" or data == "[DONE]":
                continue
            piece = _read_event(json.loads(data), answer)
            if piece:
                if answer.ttft_ms is None:
                    answer.ttft_ms = (time.perf_counter() - began) * 1000
                answer.text += piece
                yield piece
    answer.total_ms = (time.perf_counter() - began) * 1000
    if answer.finish_reason is None:
        raise ChatError(f"{url} closed the stream before the answer was complete; ask again.")


def _headers(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _read_event(event: dict[str, Any], answer: Answer) -> str:
    if "error" in event:
        raise ChatError(str(event["error"]["message"]))
    answer.usage = event.get("usage") or answer.usage
    text = ""
    for choice in event["choices"]:
        text += choice["delta"].get("content") or ""
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
    return text


def _open(request: urllib.request.Request, timeout_s: float) -> Any:
    try:
        return urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        try:
            sentence = json.load(error)["error"]["message"]
        except (ValueError, LookupError, TypeError):
            sentence = f"{request.full_url} answered {error.code} {error.reason}."
        raise ChatError(sentence) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ChatError(
            f"Cannot reach {request.full_url} ({reason}); start the endpoint with `elasmo serve` or give --url."
        ) from None


def _base64(path: Path) -> str:
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise ChatError(f"Cannot read {path}: {error.strerror}; give the path of a file.") from None
