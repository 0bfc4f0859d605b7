"""Geometry of the report's charts: from numbers to axes, ticks and SVG paths on a 1000 by 1000 square.

Labels stay HTML beside the square, so that they keep their size at every width of the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

SIDE = 1000.0
MAX_BINS = 100


@dataclass(frozen=True)
class Axis:
    """A range of values along 0..SIDE, linear or logarithmic."""

    low: float
    high: float
    scale: Literal["linear", "log"] = "linear"

    def position(self, value: float) -> float:
        """0 at `low`, SIDE at `high`; values beyond are clipped to the ends."""
        low, high, at = (math.log(x) if self.scale == "log" else x for x in (self.low, self.high, self._inside(value)))
        return SIDE * ((at - low) / (high - low))

    def _inside(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values in the range, about `wanted` of them: steps of 1, 2 or 5 times a power of ten."""
        if self.scale == "log":
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for factors in ((1, 2, 5), (1, 3), (1,)):
                values = [factor * 10.0**decade for decade in decades for factor in factors]
                values = [value for value in values if self.low <= value <= self.high]
                if len(values) <= wanted + 2:
                    break
            return values
        rough = (self.high - self.low) / wanted
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Line:
    """One series: every finite point, and the running median that is drawn over it."""

    name: str
    points: tuple[tuple[float, float], ...]
    trend: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        return self.trend[-1][1] if self.trend else float("nan")


@dataclass(frozen=True)
class Bin:
    """Neighbouring steps drawn as one: the mean seconds of each part."""

    first: int
    last: int
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def line(name: str, points: Sequence[tuple[float, float | None]], smooth: bool = True) -> Line:
    """A series without its missing and non-finite values; the median runs over a fortieth of the points."""
    finite = tuple((x, y) for x, y in points if y is not None and math.isfinite(y))
    reach = len(finite) // 80 if smooth else 0
    values = [y for _, y in finite]
    trend = tuple((x, median(values[max(0, index - reach) : index + reach + 1])) for index, (x, _) in enumerate(finite))
    return Line(name, finite, trend)


def range_of(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest value, widened where they are equal so that an axis can be drawn."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def step_axis(steps: Sequence[int]) -> Axis:
    return Axis(*range_of([float(step) for step in steps]))


def value_axis(lines: Sequence[Line]) -> Axis:
    """Logarithmic where all values are positive and span over a factor of 20, else linear from zero or below."""
    values = [y for series in lines for _, y in series.points]
    low, high = range_of(values)
    if values and low > 0 and high / low > 20:
        return Axis(low / 1.1, high * 1.1, "log")
    return Axis(min(0.0, low), high * 1.05 if high > 0 else high + 0.5)


def path(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> str:
    """An SVG path through the points; y grows upwards."""
    places = (f"{x.position(at):.1f} {SIDE - y.position(value):.1f}" for at, value in points)
    return "M" + " L".join(places) if points else ""


def dots(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> str:
    """An SVG path of zero-length strokes, which a round line cap draws as dots."""
    return " ".join(f"M{x.position(at):.1f} {SIDE - y.position(value):.1f} h0" for at, value in points)


def bins(steps: Sequence[int], parts: Sequence[Mapping[str, float]], limit: int = MAX_BINS) -> list[Bin]:
    """At most `limit` groups of equally many neighbouring steps, each with the mean of its parts."""
    size = max(1, math.ceil(len(steps) / limit))
    groups = [(steps[at : at + size], parts[at : at + size]) for at in range(0, len(steps), size)]
    return [
        Bin(members[0], members[-1], {name: fmean(row.get(name, 0.0) for row in rows) for name in rows[0]})
        for members, rows in groups
    ]


def clipped_height(totals: Sequence[float]) -> float:
    """Top of the axis of step times: a few slow steps (a start, a resize) must not flatten the rest."""
    ordered = sorted(totals)
    highest = ordered[-1] * 1.05 if ordered else 1.0
    usual = ordered[int((len(ordered) - 1) * 0.9)] * 1.3 if len(ordered) >= 10 else highest
    return min(usual, highest) or 1.0


def stacked_areas(groups: Sequence[Bin], names: Sequence[str], x: Axis, y: Axis) -> dict[str, str]:
    """One stepped SVG area a part, stacked in the order of `names`; a bin spans from its first to its last step."""
    base = [0.0] * len(groups)
    areas = {}
    for name in names:
        top = [low + group.parts.get(name, 0.0) for low, group in zip(base, groups, strict=True)]
        edges = list(zip(groups, base, top, strict=True))
        upper = [point for group, _, high in edges for point in ((group.first - 0.5, high), (group.last + 0.5, high))]
        lower = [point for group, low, _ in edges for point in ((group.first - 0.5, low), (group.last + 0.5, low))]
        areas[name] = path([*upper, *reversed(lower)], x, y) + " Z" if groups else ""
        base = top
    return areas
