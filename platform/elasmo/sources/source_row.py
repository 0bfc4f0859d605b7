"""One row as a reader found it in a source, and how its values land: scalars as text, media as bytes."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from elasmo.sources.locate import SourceFile
from elasmo.sources.quarantine import RowError

FAULT = "landing fault"
"""Bronze column that says why a record could not be read."""


@dataclass(frozen=True)
class Fault:
    """A value that cannot be had, with the reason; its row is refused where the contract declares the column."""

    reason: str


@dataclass(frozen=True)
class SourceRow:
    """A record of a source.

    Attributes:
        place: what it is called until it has a key: its file and row number, line or name.
        values: column -> text, bytes, number, time, or what JSON can hold.
        fault: why the whole record cannot be read, None when it can.
        file: where media that it names by path lie beside; None where media are bytes.
    """

    place: str
    values: Mapping[str, Any] = field(default_factory=dict)
    fault: str | None = None
    file: SourceFile | None = None


def scalar(name: str, value: Any) -> str | None:
    """A value as bronze keeps it: text as it is, everything else as JSON or ISO 8601.

    Raises:
        RowError: a value that has no text.
    """
    if value is None:
        return None
    if isinstance(value, Fault):
        raise RowError(value.reason)
    try:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).decode()
        text = value if isinstance(value, str) else _plain(value)
        text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, default=_plain)
        text.encode()
    except UnicodeError:
        raise RowError(f"{name} is not valid UTF-8 text") from None
    except (TypeError, ValueError, RecursionError):
        raise RowError(f"{name} holds a {type(value).__name__}, which has no text") from None
    return text


def medium(name: str, value: Any) -> bytes | str | None:
    """The bytes of a medium, or the path of its file beside the record's own.

    Raises:
        RowError: neither bytes nor a path.
    """
    if isinstance(value, Fault):
        raise RowError(value.reason)
    if isinstance(value, Mapping) and set(value) == {"bytes", "path"}:  # an image or a sound of Hugging Face datasets
        value = value["bytes"] if value["bytes"] is not None else value["path"]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if value is None or isinstance(value, str):
        return value
    raise RowError(f"{name} is a {type(value).__name__}; it must be the bytes of a file, or its path")


def _plain(value: Any) -> Any:
    """A value of a type that JSON does not know, as one that it does."""
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if value is None or isinstance(value, bool | int | float | str | list | tuple | dict):
        return value
    raise TypeError(type(value).__name__)
