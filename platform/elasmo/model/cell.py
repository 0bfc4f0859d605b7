"""What a table cell of text or time is made of: hashed n-grams, and whole days with the seconds after midnight."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime

GRAM = 3
"""Bytes of an n-gram."""
DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1)


def text_buckets(text: str, buckets: int) -> list[int]:
    """The bucket, from 0, of each n-gram of a text's UTF-8 bytes, between marks of its start and end.

    Hashed n-grams as in fastText (Bojanowski et al. 2017): spelling counts, word order beyond three bytes does not, and
    nothing has to be known of the field's values beforehand.
    """
    marked = b"\x02" + text.encode("utf-8", "replace") + b"\x03"
    return [zlib.crc32(marked[at : at + GRAM]) % buckets for at in range(max(1, len(marked) - GRAM + 1))]


def days_and_seconds(text: str) -> tuple[int, int]:
    """Whole days since 1970-01-01 and seconds since midnight of an ISO 8601 date or time.

    A time with an offset is brought to UTC; one without stays as the clock showed it.

    Raises:
        ValueError: not a date or time in ISO 8601.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        try:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        except OverflowError:
            raise ValueError(f"{text} is outside the years 1 to 9999 in UTC") from None
    passed = moment - _EPOCH
    return passed.days, passed.seconds
