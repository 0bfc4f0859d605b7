"""Published measurements that ship with the package; each row cites its source, and every file keeps its columns."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


def read_table(stem: str) -> list[dict[str, str]]:
    """Rows of `tables/<stem>.csv`, every cell as text, a blank one empty."""
    return [dict(row) for row in _rows(stem)]


@cache
def _rows(stem: str) -> tuple[dict[str, str], ...]:
    text = files("elasmo.simulate").joinpath("tables", f"{stem}.csv").read_text()
    return tuple({key: value or "" for key, value in row.items() if key} for row in csv.DictReader(text.splitlines()))


UNKNOWN = {"", "nan", "none", "null", "unknown", "n/a", "na", "-", "?"}
"""Cells that say nothing."""


class CellError(ValueError):
    """A cell that is no number where one belongs."""


def optional_number(text: str | None) -> float | None:
    """A cell as a finite number; None where it is blank or is none."""
    try:
        number = float((text or "").replace(",", "").replace("_", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def whole_number(row: Mapping[str, str], key: str) -> int | None:
    """A cell as a whole number from 0; None where it is blank or says that it is unknown.

    Raises:
        CellError: anything else.
    """
    text = (row.get(key) or "").strip()
    if text.lower() in UNKNOWN:
        return None
    number = optional_number(text)
    if number is None or number < 0 or number != int(number):
        raise CellError(f"{key}={text} must be a whole number, or blank where it is not known.")
    return int(number)


def scored(row: dict[str, str]) -> bool:
    """Whether a row was read in its source or computed from it: only such rows are fitted and scored."""
    return row.get("verified", "yes").strip().lower().startswith(("yes", "derived"))
