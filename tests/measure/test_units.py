"""Quantities as people read them."""

from __future__ import annotations

import pytest

from elasmo.measure import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 ms"), (0.000123, "0.123 ms"), (0.0123, "12.3 ms"), (0.999, "999 ms"), (1.0, "1.0 s"),
        (12.345, "12.3 s"), (59.94, "59.9 s"), (59.96, "1 min 0 s"), (119.7, "2 min 0 s"), (312, "5 min 12 s"),
        (3599.6, "1 h 0 min"),
        (7384, "2 h 3 min"), (float("nan"), "unknown"), (float("inf"), "unknown"),
    ],
)  # fmt: skip
def test_seconds(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")]
)
def test_byte_sizes(value: int, text: str) -> None:
    assert units.byte_size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (2, "2"), (2.0, "2"), (123.4, "123"), (12345.6, "12,346"), (1_443_200, "1,443,200"),
     (1e-7, "1e-07"), (float("nan"), "unknown")],
)  # fmt: skip
def test_numbers(value: float, text: str) -> None:
    assert units.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.0 %"), (0.9567, "95.7 %"), (0.9996, "> 99.9 %"), (0.9994, "99.9 %"), (1.0, "100 %")]
)
def test_percent_never_rounds_up_to_all(value: float, text: str) -> None:
    assert units.percent(value) == text
