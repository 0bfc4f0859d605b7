"""A sample before it is encoded: turns of text and of references to silver rows, so no media bytes are held twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]
Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Ref:
    """The image, sound or record of a silver row: of `column` where its table has more than one."""

    table: str
    key: str
    column: str | None = None

    def __str__(self) -> str:
        return f"{self.table}/{self.key}" + (f"/{self.column}" if self.column else "")

    @property
    def row(self) -> Ref:
        """The whole row."""
        return Ref(self.table, self.key)


@dataclass(frozen=True)
class Record:
    """A record written out in the sample itself."""

    fields: Mapping[str, float | int | str | None]


DraftSegment = str | Ref | Record


@dataclass(frozen=True)
class Turn:
    """One message: text, references and records in the order in which the model reads them."""

    role: Role
    segments: tuple[DraftSegment, ...]


@dataclass(frozen=True)
class Draft:
    """A conversation to be encoded; its last turn is the assistant's answer.

    `split` and `concept` may stay None where the referenced rows have them: the sample takes theirs, and a sample that
    mixes splits is quarantined.
    """

    key: str
    turns: tuple[Turn, ...]
    split: Split | None = None
    concept: str | None = None
    source: Ref | None = None

    @property
    def refs(self) -> tuple[Ref, ...]:
        """References in reading order."""
        return tuple(segment for turn in self.turns for segment in turn.segments if isinstance(segment, Ref))
