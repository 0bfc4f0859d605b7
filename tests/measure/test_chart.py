"""Geometry: axes are monotone and their ticks round, drawn paths read back to the numbers they were made of."""

from __future__ import annotations

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasmo.measure.chart import SIDE, Axis, bins, clipped_height, line, path, stacked_areas, step_axis, value_axis

values = st.floats(-1e6, 1e6, allow_nan=False)


def read_path(d: str) -> list[tuple[float, float]]:
    return [(float(x), SIDE - float(y)) for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", d)]


@given(values, st.floats(1e-3, 1e6), st.lists(values, min_size=2, max_size=10))
def test_positions_keep_the_order_and_stay_inside(low: float, span: float, points: list[float]) -> None:
    axis = Axis(low, low + span)
    places = [axis.position(point) for point in sorted(points)]
    assert places == sorted(places)
    assert places[0] >= 0 and places[-1] <= SIDE
    assert (axis.position(low), axis.position(low + span)) == (0, SIDE)


@given(values, st.floats(1e-3, 1e6))
def test_linear_ticks_are_few_round_and_inside(low: float, span: float) -> None:
    axis = Axis(low, low + span)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 11
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in ticks)
    steps = {round(after - before, 9) for before, after in itertools.pairwise(ticks)}
    assert max(steps) - min(steps) <= 1e-6 * span
    mantissa = min(steps) / 10 ** math.floor(math.log10(min(steps)) + 1e-9)
    assert min(abs(mantissa - round_one) for round_one in (1, 2, 5, 10)) < 1e-3


@given(st.floats(1e-6, 1e3), st.floats(25, 1e6))
def test_log_ticks_are_few_and_inside(low: float, ratio: float) -> None:
    axis = Axis(low, low * ratio, "log")
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 11
    assert all(low <= tick <= low * ratio for tick in ticks)


def test_log_positions_are_even_by_ratio() -> None:
    axis = Axis(0.01, 100.0, "log")
    assert [round(axis.position(value)) for value in (0.01, 0.1, 1, 10, 100)] == [0, 250, 500, 750, 1000]


@pytest.mark.parametrize(
    ("points", "scale"),
    [([0.1, 3.0], "log"), ([1.0, 2.0], "linear"), ([0.0, 50.0], "linear"), ([-1.0, 50.0], "linear")],
)
def test_the_scale_is_logarithmic_for_wide_positive_values_only(points: list[float], scale: str) -> None:
    assert value_axis([line("a", list(enumerate(points)))]).scale == scale


def test_one_step_and_one_value_still_make_an_axis() -> None:
    only = line("a", [(7, 0.5)])
    x, y = step_axis([7]), value_axis([only])
    assert read_path(path(only.points, x, y)) == [(500.0, pytest.approx(SIDE * 0.5 / 1.05, abs=0.1))]


def test_missing_and_non_finite_values_are_not_drawn() -> None:
    series = line("a", [(1, 1.0), (2, None), (3, math.nan), (4, math.inf), (5, 2.0)])
    assert series.points == ((1, 1.0), (5, 2.0))
    assert math.isnan(line("a", []).last)


def test_the_trend_is_the_running_median() -> None:
    points = [(x, 100.0 if x % 10 == 0 else 1.0) for x in range(400)]
    trend = line("a", points).trend
    assert {y for _, y in trend} == {1.0}
    assert line("a", points, smooth=False).trend == tuple(points)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=300), st.integers(1, 50))
def test_bins_cover_every_step_once_and_keep_the_sum(totals: list[float], limit: int) -> None:
    steps = list(range(1, len(totals) + 1))
    groups = bins(steps, [{"a": total, "b": 1.0} for total in totals], limit)
    assert len(groups) <= limit
    assert [step for group in groups for step in range(group.first, group.last + 1)] == steps
    whole = sum(group.total * (group.last - group.first + 1) for group in groups)
    assert whole == pytest.approx(sum(totals) + len(totals))


def test_stacked_areas_stand_on_each_other() -> None:
    groups = bins([1, 2], [{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 1.0}])
    x, y = Axis(0.5, 2.5), Axis(0.0, 10.0)
    areas = {name: read_path(d) for name, d in stacked_areas(groups, ["a", "b"], x, y).items()}
    assert [high for _, high in areas["a"]] == [100, 100, 300, 300, 0, 0, 0, 0]
    assert [high for _, high in areas["b"]] == [300, 300, 400, 400, 300, 300, 100, 100]
    assert [left for left, _ in areas["a"]][:4] == [0, 500, 500, 1000]


def test_one_slow_step_does_not_flatten_the_rest() -> None:
    assert clipped_height([0.2] * 99 + [30.0]) == pytest.approx(0.26)
    assert clipped_height([0.2, 0.3]) == pytest.approx(0.315)
    assert clipped_height([]) == 1.0
