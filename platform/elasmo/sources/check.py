"""Checks of single values: landed text and bytes in, typed values out, or one sentence on why not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasmo.config import LimitsConfig
from elasmo.model.cell import days_and_seconds
from elasmo.model.media import MediaError, decode_audio, decode_image
from elasmo.sources.contract import Column, RecordField
from elasmo.sources.files import KINDS, inside
from elasmo.sources.quarantine import RowError

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Checks:
    """What values are checked against, besides their column."""

    record: Mapping[str, RecordField]
    limits: LimitsConfig
    sample_rate: int | None
    seen: Callable[[str, NDArray[np.uint8]], None] | None = None
    """Told of the column and pixels of each image that passed, so that nobody has to decode it again."""

    def value(self, name: str, column: Column, value: Any) -> Any:
        """The typed value of a column: str, int, float, bytes, dict of a record, or JSON text of messages.

        Raises:
            RowError: a value that is missing, of the wrong type, out of range, unknown, or that does not decode.
        """
        if value is None:
            if column.nullable:
                return None
            raise RowError(f"{name} is missing")
        match column.type:
            case "string":
                return str(value)
            case "integer" | "number":
                return number(name, value, column.min, column.max, integer=column.type == "integer")
            case "category":
                return category(name, value, column.categories)
            case "image":
                return self._image(name, column, value)
            case "audio":
                return self._audio(name, value)
            case "record":
                return self.record_of(_from_json(name, value))
            case "messages":
                return json.dumps(self._messages(_from_json(name, value)), ensure_ascii=False, separators=(",", ":"))

    def record_of(self, value: Any) -> dict[str, float | int | str | None]:
        """A record with every field of the contract, typed, in the contract's order."""
        if not isinstance(value, dict):
            raise RowError(f"a record is {value!r}; it must be an object of fields")
        unknown = [field for field in value if field not in self.record]
        if unknown:
            raise RowError(f"record field {unknown[0]!r} is unknown; fields are {', '.join(self.record) or 'none'}")
        return {name: _field(name, field, value.get(name)) for name, field in self.record.items()}

    def _image(self, name: str, column: Column, value: bytes) -> bytes:
        try:
            pixels = decode_image(value, self.limits)
        except MediaError as error:
            raise RowError(f"{name}: {error}") from None
        height, width = pixels.shape[:2]
        if (column.width or width, column.height or height) != (width, height):
            raise RowError(f"{name} is {width}x{height} pixels; it must be {column.width}x{column.height}")
        if self.seen is not None:
            self.seen(name, pixels)
        return value

    def _audio(self, name: str, value: bytes) -> bytes:
        if self.sample_rate is None:
            raise RowError(f"{name}: the contract names no media.sample_rate, so audio cannot be read")
        try:
            decode_audio(value, self.limits, self.sample_rate)
        except MediaError as error:
            raise RowError(f"{name}: {error}") from None
        return value

    def _messages(self, value: Any) -> list[dict[str, Any]]:
        if not isinstance(value, list) or len(value) < 2:
            raise RowError("messages must be a list that ends with a user's message and the assistant's answer")
        turns = [self._message(message) for message in value]
        if [turn["role"] for turn in turns[-2:]] != ["user", "assistant"]:
            raise RowError("messages must end with a user's message and the assistant's answer")
        return turns

    def _message(self, message: Any) -> dict[str, Any]:
        if not isinstance(message, dict) or set(message) != {"role", "segments"}:
            raise RowError(f"message {_short(message)} must be an object with role and segments")
        if message["role"] not in ROLES:
            raise RowError(f"role is {message['role']!r}; it must be one of {', '.join(ROLES)}")
        if not isinstance(message["segments"], list) or not message["segments"]:
            raise RowError("segments must be a list that is not empty")
        segments = [self._segment(segment) for segment in message["segments"]]
        if message["role"] == "assistant" and any("text" not in segment for segment in segments):
            raise RowError("an assistant's message takes text segments only")
        return {"role": message["role"], "segments": segments}

    def _segment(self, segment: Any) -> dict[str, Any]:
        if not isinstance(segment, dict) or len(segment) != 1:
            raise RowError(f"segment {_short(segment)} must be an object with one of text, image, audio, table")
        ((kind, value),) = segment.items()
        if kind == "table":
            return {kind: self.record_of(value)}
        if kind not in ("text", *KINDS):
            raise RowError(f"segment kind is {kind!r}; it must be one of text, image, audio, table")
        if not isinstance(value, str):
            raise RowError(f"{kind} segment is {_short(value)}; it must be a string")
        if kind in KINDS and not inside(value):
            raise RowError(f"{kind} path {value!r} leaves the dataset folder; it must be relative to it, without ..")
        return {kind: value}


def number(name: str, value: Any, low: float | None, high: float | None, integer: bool) -> float | int:
    """A finite number within [low, high]; text is parsed."""
    kind = "an integer" if integer else "a number"
    try:
        if isinstance(value, bool):
            raise ValueError
        parsed = float(value)
    except (TypeError, ValueError):
        raise RowError(f"{name} is {value!r}; it must be {kind}") from None
    if not math.isfinite(parsed) or (integer and parsed != int(parsed)):
        raise RowError(f"{name} is {value!r}; it must be {kind}")
    if (low is not None and parsed < low) or (high is not None and parsed > high):
        bounds = " and ".join(text for text in (_bound("at least", low), _bound("at most", high)) if text)
        raise RowError(f"{name} is {value}; it must be {bounds}")
    return int(parsed) if integer else parsed


def category(name: str, value: Any, categories: tuple[str, ...]) -> str:
    """One of the categories."""
    if str(value) not in categories:
        raise RowError(f"{name} is {value!r}; it must be one of {', '.join(categories)}")
    return str(value)


def text(name: str, value: Any) -> str:
    """A text as it is."""
    if not isinstance(value, str):
        raise RowError(f"{name} is {_short(value)}; it must be a string")
    return value


def time(name: str, value: Any) -> str:
    """An ISO 8601 date or time as it is."""
    try:
        days_and_seconds(value)
    except (TypeError, ValueError):
        raise RowError(f"{name} is {_short(value)}; it must be a date or time such as 2024-03-01T12:30") from None
    return str(value)


def _field(name: str, field: RecordField, value: Any) -> float | int | str | None:
    if value is None:
        if field.nullable:
            return None
        raise RowError(f"record field {name} is missing")
    if field.type == "category":
        return category(f"record field {name}", value, field.categories)
    if field.type == "text":
        return text(f"record field {name}", value)
    if field.type == "time":
        return time(f"record field {name}", value)
    return number(f"record field {name}", value, field.min, field.max, field.integer)


def _from_json(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise RowError(f"{name} is not valid JSON: {error}") from None


def _bound(words: str, value: float | None) -> str:
    return "" if value is None else f"{words} {value:g}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
