"""The fit finds constants that made the data, whatever a few outliers say, and the shipped ones meet their goals."""

from __future__ import annotations

import numpy as np
import pytest

from elasmo.simulate.fit_serving import fit, levenberg, start
from elasmo.simulate.score import score
from elasmo.simulate.serving_constants import default_constants
from elasmo.simulate.serving_rows import Case, published_cases
from elasmo.simulate.validate_serving import NOTHING, cache_points, panel_points


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return published_cases(default_constants())


def test_the_search_recovers_a_line_under_outliers() -> None:
    x = np.linspace(1, 10, 60)
    truth = np.array([0.7, -0.3])
    y = truth[0] + truth[1] * np.log(x)
    y[::10] += 2.0

    def residuals(p: np.ndarray) -> np.ndarray:
        return p[0] + p[1] * np.log(x) - y

    found = levenberg(residuals, np.zeros(2), np.full(2, -5.0), np.full(2, 5.0))
    assert found == pytest.approx(truth, abs=0.01)


def test_the_shipped_constants_are_what_the_fit_finds(cases: list[Case]) -> None:
    found, shipped = fit(cases, start()), default_constants()
    for name in ("gap_s", "cache_read", "expert", "core_attention", "compute", "idle"):
        assert getattr(found, name) == pytest.approx(getattr(shipped, name), rel=0.15), name


@pytest.mark.parametrize(
    ("quantity", "source", "goal"),
    [
        ("median ITL", "S07", 0.10), ("throughput", "S07", 0.10), ("energy per token", "S07", 0.12),
        ("throughput", "S05", 0.10), ("TTFT", "S05", 0.10), ("decode step (TPOT)", "S02", 0.10),
        ("prefill step (TTFT)", "S02", 0.10),
    ],
)  # fmt: skip
def test_published_rows_are_met(cases: list[Case], quantity: str, source: str, goal: float) -> None:
    points = panel_points([case for case in cases if case.source.startswith(source)], default_constants(), NOTHING)
    assert score([point for point in points if point.quantity == quantity]).median <= goal


def test_cache_capacities_are_met_with_a_share_fitted_on_the_other_model() -> None:
    assert score(cache_points()).p90 < 0.03
