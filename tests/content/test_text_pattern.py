"""Which texts hold which patterns."""

from __future__ import annotations

import pytest

from elasmo.content.text_pattern import SCANNED_CHARACTERS, count_patterns


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("seen 2024-01-31", ["date"]),
        ("on 3.12.2024 or 1/2/2024", ["date"]),
        ("version 1.2.3", []),
        ("550e8400-e29b-41d4-a716-446655440000", ["uuid"]),
        ("sha 9f86d081884c7d65", ["hex"]),
        ("123456789012 and deadbeefcafe", []),
        ("weighs 12 kg, 3.5cm", ["unit"]),
        ("12 kgs of 5 mice", []),
        ("write to a.b@example.org", ["email"]),
        ("https://example.org/x", ["url"]),
    ],
)
def test_patterns(text: str, patterns: list[str]) -> None:
    assert list(count_patterns([text, "plain"])) == patterns


def test_only_the_head_of_a_text_is_scanned_and_that_is_linear() -> None:
    assert count_patterns(["x " * SCANNED_CHARACTERS + "2024-01-31"]) == {}
    assert count_patterns(["a.@" * 100_000, "1" * 100_000, "f" * 100_000, "0." * 100_000]) == {}
