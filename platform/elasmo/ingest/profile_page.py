"""A profile, with the gate's verdict on it, as one self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import jinja2

from elasmo.content.sketch import DISTINCT_ERROR, RANK_ERROR, Numbers
from elasmo.ingest.gate_report import GateReport
from elasmo.ingest.profile import ColumnProfile, Profile
from elasmo.measure import units

BINS = 24
RANKS = {"5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95}
BARS_SHOWN = 12


@dataclass(frozen=True)
class Bar:
    """A bar with a label, what it stands for, and its length in percent of the longest."""

    label: str
    value: str
    percent: float


@dataclass(frozen=True)
class Facet:
    """A distribution: its name, the bars of its histogram from left to right, and (name, figure) pairs."""

    name: str
    bars: tuple[Bar, ...]
    figures: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Card:
    """A column as the page shows it."""

    name: str
    type: str
    figures: tuple[tuple[str, str], ...]
    facets: tuple[Facet, ...]
    mix: tuple[Bar, ...]
    mix_left: int
    found: tuple[Bar, ...]


def render(profile: Profile, report: GateReport | None = None) -> str:
    """The page; `report` is None where the snapshot was not judged, as bronze and gold are not."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("elasmo.ingest", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tables = [
        {
            "name": name,
            "rows": units.number(table.rows),
            "mixes": {mix: bars(counts)[:BARS_SHOWN] for mix, counts in table.mixes().items()},
            "cards": [card(column, values) for column, values in table.columns.items()],
        }
        for name, table in profile.tables.items()
    ]
    return environment.get_template("profile.html.j2").render(
        profile=profile, tables=tables, report=report, rank_error=RANK_ERROR, distinct_error=DISTINCT_ERROR
    )


def card(name: str, column: ColumnProfile) -> Card:
    """The facts of a column, as text."""
    distinct = () if column.distinct_values is None else (("distinct", f"≈ {column.distinct_values:,}"),)
    nulls = f"{column.nulls:,} ({units.percent(column.null_share)})"
    figures = (("values", f"{column.rows:,}"), ("nulls", nulls), *distinct)
    facets = tuple(facet(key, numbers) for key, numbers in column.facets.items() if numbers.count)
    counts = column.mix.counts or {}
    mix = bars(counts) if max(counts.values(), default=0) > 1 else ()  # a key says nothing by its values
    shares = column.found_shares()
    found = tuple(Bar(key, units.percent(share), share * 100) for key, share in shares.items())
    return Card(name, column.type, figures, facets, mix[:BARS_SHOWN], len(mix[BARS_SHOWN:]), found)


def facet(name: str, numbers: Numbers) -> Facet:
    """Histogram of equal bins from minimum to maximum, one a value for a few integers; none for a single value."""
    assert numbers.minimum is not None and numbers.maximum is not None
    low, high = numbers.minimum, numbers.maximum
    lost = (("not finite", f"{numbers.not_finite:,}"),) if numbers.not_finite else ()
    if low == high:
        return Facet(name, (), (("always", units.number(low)), *lost))
    if isinstance(low, int) and isinstance(high, int) and high - low < BINS:
        edges: list[float] = [float(value) for value in range(low, high)]
        labels = [units.number(value) for value in range(low, high + 1)]
    elif math.isfinite(high - low):
        edges = sorted({low + (high - low) * (number / BINS) for number in range(1, BINS)} - {low, high})
        ends = [units.number(end) for end in (low, *edges, high)]
        labels = [f"{start} to {end}" for start, end in pairwise(ends)]
    else:
        edges, labels = [0.0], ["below 0", "above 0"]  # from one end of the doubles to the other
    shares = numbers.shares(edges).tolist()
    drawn = zip(labels, shares, strict=True)
    bins = tuple(Bar(label, units.percent(share), 100 * share / max(shares)) for label, share in drawn)
    ranks = zip(RANKS, numbers.quantiles(list(RANKS.values())), strict=True)
    mean = math.nan if numbers.mean is None else numbers.mean
    figures = [("min", low), *ranks, ("max", high), ("mean", mean)]
    return Facet(name, bins, (*((key, units.number(value)) for key, value in figures), *lost))


def bars(counts: Mapping[str, int]) -> tuple[Bar, ...]:
    """Categories, the most frequent first."""
    total, ordered = sum(counts.values()), sorted(counts.items(), key=lambda item: -item[1])
    return tuple(Bar(key, f"{n:,} ({units.percent(n / total)})", 100 * n / ordered[0][1]) for key, n in ordered)
