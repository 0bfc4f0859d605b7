"""A sample as users think of it: messages made of text, images, sounds and table records, in any order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]
Value = float | int | str | None


@dataclass(frozen=True)
class Text:
    """Plain text; nothing in it is ever read as a control token."""

    text: str


@dataclass(frozen=True)
class Image:
    """An encoded image file: PNG, JPEG or another format that Pillow reads."""

    data: bytes


@dataclass(frozen=True)
class Audio:
    """An encoded sound file: WAV, FLAC or another format that libsndfile reads."""

    data: bytes


@dataclass(frozen=True)
class Table:
    """One record: field name to number or category; a missing field or None is a missing value."""

    record: Mapping[str, Value]


Segment = Text | Image | Audio | Table


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: Role
    segments: tuple[Segment, ...]
