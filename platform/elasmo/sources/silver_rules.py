"""What a contract says of silver beyond its columns: near duplicates, languages, and how long a row may take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from elasmo.sources.part import Part


def _action(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


Action = Annotated[Literal["off", "mark", "drop", "quarantine"], BeforeValidator(_action)]
Seconds = Annotated[float, Field(gt=0)]


class NearImages(Part):
    """Images whose perceptual hashes differ in at most `distance` of 64 bits are near."""

    do: Action = "mark"
    distance: int = Field(4, ge=0, le=12, description="of 64 bits")


class NearTexts(Part):
    """Texts that share at least `similarity` of their 5-character shingles (Jaccard) are near."""

    do: Action = "mark"
    similarity: float = Field(0.8, ge=0.5, le=1.0)


class NearRules(Part):
    """What silver does with a row that is near one of a smaller key: name it, leave it out, or refuse it."""

    image: NearImages = NearImages()
    text: NearTexts = NearTexts()


class LanguageRule(Part):
    """A text is tagged with a language that is at least this probable, else with `und`."""

    tag: bool = True
    confidence: float = Field(0.5, ge=0.0, le=1.0)


class Timeouts(Part):
    """How long one row may be decoded, and how long a source may give no row; null waits for ever."""

    row_s: Seconds | None = 60.0
    source_s: Seconds | None = 1800.0
