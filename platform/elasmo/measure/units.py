"""Quantities as people read them, with their unit: seconds, bytes, counts, shares."""

from __future__ import annotations

import math

UNKNOWN = "unknown"


def seconds(value: float) -> str:
    """0.0123 -> 12.3 ms; 12.345 -> 12.3 s; 312 -> 5 min 12 s."""
    if not math.isfinite(value):
        return UNKNOWN
    if value >= 3599.5:
        return "{} h {} min".format(*divmod(round(value / 60), 60))
    if value >= 59.95:
        return "{} min {} s".format(*divmod(round(value), 60))
    if abs(value) >= 1:
        return f"{value:.1f} s"
    return f"{value * 1000:.3g} ms"


def byte_size(value: float) -> str:
    """1536 -> 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def number(value: float) -> str:
    """Three significant digits below a thousand, thousands grouped above: 0.01234 -> 0.0123; 12345.6 -> 12,346."""
    if not math.isfinite(value):
        return UNKNOWN
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """0.9567 -> 95.7 %; never rounds up to 100 % what is not all of it."""
    if not math.isfinite(value):
        return UNKNOWN
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    return f"{value * 100:.1f} %".replace("100.0", "100")
