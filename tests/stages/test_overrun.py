"""Time and memory of the next run: closed forms, and calibration over simulated histories."""

from __future__ import annotations

import math

import numpy as np
import pytest

from elasmo.stages.overrun import predict
from tests.stages.histories import brier, reliability


def test_an_exact_law_is_found_again() -> None:
    sizes = [1e8 * 2**n for n in range(8)]
    made = predict(sizes, [3 * (size / 1e9) ** 0.8 for size in sizes], [1.0] * 8, 2e9, 1.0)
    assert made.slope == pytest.approx(0.8, abs=0.01)
    assert made.quantile(0.5) == pytest.approx(3 * 2**0.8, rel=0.01)
    assert made.above(1e3) < 0.01 and made.above(1e-3) > 0.99
    assert made.above(made.quantile(0.9)) == pytest.approx(0.1, abs=1e-6)


def test_with_one_size_the_prior_says_how_it_grows_and_the_interval_is_wide() -> None:
    near, far = (predict([1e9] * 10, [60.0] * 10, [1.0] * 10, size, 1.0) for size in (1e9, 4e9))
    assert near.quantile(0.5) == pytest.approx(60, rel=0.02) and far.quantile(0.5) == pytest.approx(240, rel=0.02)
    assert far.scale > 2 * near.scale


def test_without_sizes_it_is_the_spread_of_the_values() -> None:
    made = predict(None, [50.0, 60.0, 72.0], [1.0] * 3, 1.0, 1.0)
    assert made.quantile(0.5) == pytest.approx(60.0, rel=1e-3)


def test_it_is_the_posterior_that_sampling_finds() -> None:
    """Against brute force: the posterior predictive on a grid of intercept, slope and noise, from its density."""
    generator = np.random.default_rng(0)
    x = generator.normal(0, 0.5, 6)
    y = 0.3 + 0.7 * x + generator.normal(0, 0.2, 6)
    made = predict(np.exp(x).tolist(), np.exp(y).tolist(), [1.0] * 6, math.exp(1.5), 1.0)
    centre = x.mean()
    noise = np.exp(np.linspace(math.log(0.03), math.log(1.5), 40))[:, None, None]
    level = np.linspace(y.mean() - 1.5, y.mean() + 1.5, 91)[None, :, None]
    slope = np.linspace(-2.0, 3.5, 91)[None, None, :]
    # inverse gamma of the variance with 2 · 0.1² / 2, in ln noise; the slope's prior scales with the noise
    log = -2 * np.log(noise) - 2 * 0.1**2 / (2 * noise**2) - np.log(noise) - (slope - 1) ** 2 * 0.2**2 / (2 * noise**2)
    for xi, yi in zip(x, y, strict=True):
        log = log - np.log(noise) - (yi - level - slope * (xi - centre)) ** 2 / (2 * noise**2)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    for limit in (0.8, 1.35, 2.0):
        z = (limit - level - slope * (1.5 - centre)) / noise
        tail = 0.5 * np.vectorize(math.erfc)(z / math.sqrt(2))
        assert made.above(math.exp(limit)) == pytest.approx(float((weight * tail).sum()), abs=0.01)


def test_synthetic_histories_are_calibrated_at_every_number_of_runs() -> None:
    generator = np.random.default_rng(7)
    said, came, covered = list[float](), list[bool](), list[bool]()
    for _ in range(800):
        count = int(generator.integers(5, 30))
        slope, noise = float(generator.normal(1.0, 0.2)), float(np.exp(generator.normal(math.log(0.12), 0.5)))
        x = generator.normal(0, 0.7, count + 1)
        y = 4 + slope * x + generator.normal(0, noise, count + 1)
        limit = math.exp(float(4 + slope * x[-1] + generator.normal(0, 2 * noise)))
        made = predict(np.exp(x[:-1]).tolist(), np.exp(y[:-1]).tolist(), [1.0] * count, math.exp(float(x[-1])), 1.0)
        said.append(made.above(limit))
        came.append(bool(math.exp(float(y[-1])) > limit))
        covered.append(0.05 <= made.above(math.exp(float(y[-1]))) <= 0.95)
    for number, stated, seen, error in reliability(said, came, (0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.01)):
        assert abs(stated - seen) < 3 * error + 0.02, (number, stated, seen)
    assert np.mean(covered) == pytest.approx(0.9, abs=0.03)
    assert brier(said, came) < 0.15  # a forecaster that knows nothing gets 0.25


def test_the_interval_of_a_chance_narrows_as_runs_are_added() -> None:
    widths = []
    for count in (5, 20, 80):
        values = np.exp(4 + 0.3 * np.linspace(-1, 1, count)).tolist()
        made = predict(None, values, [1.0] * count, 1.0, 1.0)
        low, high = made.above_interval(math.exp(4.1))
        assert low < made.above(math.exp(4.1)) < high
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True) and widths[2] < 0.5 * widths[0]
