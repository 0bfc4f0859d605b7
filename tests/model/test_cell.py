"""Parts of text and time cells against hand-made values."""

from __future__ import annotations

import zlib

import pytest

from elasmo.model.cell import days_and_seconds, text_buckets


@pytest.mark.parametrize(
    ("text", "days", "seconds"),
    [
        ("1970-01-01", 0, 0),
        ("1970-01-02T00:00:01", 1, 1),
        ("1969-12-31T23:59:59", -1, 86_399),
        ("2024-03-01 12:30", 19_783, 45_000),
        ("2024-03-01T12:30:00Z", 19_783, 45_000),
        ("2024-03-01T01:30:00+02:00", 19_782, 84_600),
        ("0001-01-01", -719_162, 0),
        ("9999-12-31", 2_932_896, 0),
    ],
)
def test_a_time_is_days_since_1970_and_seconds_of_its_day(text: str, days: int, seconds: int) -> None:
    assert days_and_seconds(text) == (days, seconds)


@pytest.mark.parametrize("text", ["", "noon", "2024-13-01", "12:30", "2024-02-30", "0001-01-01T00:00:00+02:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        days_and_seconds(text)


def test_a_text_is_the_buckets_of_its_trigrams() -> None:
    grams = [b"\x02h\xc3", b"h\xc3\xa9", b"\xc3\xa9\x03"]
    assert text_buckets("hé", 1000) == [zlib.crc32(gram) % 1000 for gram in grams]
    assert text_buckets("", 1000) == [zlib.crc32(b"\x02\x03") % 1000]


def test_texts_differ_by_spelling_case_and_order() -> None:
    texts = ["", " ", "a", "A", "ab", "ba", "abc", "abcd", "bcda", "héllo", "hello"]
    assert len({tuple(text_buckets(text, 1 << 20)) for text in texts}) == len(texts)


def test_half_a_surrogate_pair_is_no_crash() -> None:
    assert text_buckets("\ud800", 10)
