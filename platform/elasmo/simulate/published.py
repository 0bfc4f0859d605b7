"""Published measurements that ship with the package; each row cites its source, and every file keeps its columns."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files


def read_table(stem: str) -> list[dict[str, str]]:
    """Rows of `tables/<stem>.csv`, every cell as text, a blank one empty."""
    return [dict(row) for row in _rows(stem)]


@cache
def _rows(stem: str) -> tuple[dict[str, str], ...]:
    text = files("elasmo.simulate").joinpath("tables", f"{stem}.csv").read_text()
    return tuple({key: value or "" for key, value in row.items() if key} for row in csv.DictReader(text.splitlines()))


def optional_number(text: str | None) -> float | None:
    """A cell as a number; None where it is blank or is none."""
    try:
        return float((text or "").replace(",", "").replace("_", ""))
    except ValueError:
        return None


def scored(row: dict[str, str]) -> bool:
    """Whether a row was read in its source or computed from it: only such rows are fitted and scored."""
    return row.get("verified", "yes").strip().lower().startswith(("yes", "derived"))
