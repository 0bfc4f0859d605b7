"""Patterns that tell what a text column holds: dates, identifiers, quantities with a unit, addresses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

SCANNED_CHARACTERS = 4096
"""Patterns are looked for at the head of a text, so that one long text costs no more than this."""

_UNITS = "kg|g|mg|t|km|m|cm|mm|s|ms|min|h|l|ml|°C|°F|K|V|A|W|kW|kWh|Hz|kHz|MHz|kB|MB|GB|px|dB|%|€|\\$|USD|EUR"

PATTERNS = {
    "date": re.compile(r"\b(?:\d{4}-\d{2}-\d{2}|\d{1,2}\.\d{1,2}\.\d{4}|\d{1,2}/\d{1,2}/\d{4})(?!\d)"),
    "uuid": re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),
    "hex": re.compile(r"(?<![\w-])(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{12,}\b"),
    "unit": re.compile(rf"(?<![\w.])\d+(?:[.,]\d+)? ?(?:{_UNITS})(?!\w)"),
    "email": re.compile(r"\b[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+\b"),
    "url": re.compile(r"\bhttps?://[^\s\"<>]+"),
}


def count_patterns(texts: Iterable[str]) -> dict[str, int]:
    """How many of the texts hold each pattern at least once; patterns that none holds are left out."""
    found: Counter[str] = Counter()
    for text in texts:
        head = text[:SCANNED_CHARACTERS]
        found.update(name for name, pattern in PATTERNS.items() if pattern.search(head))
    return {name: found[name] for name in PATTERNS if found[name]}
