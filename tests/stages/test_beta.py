"""The beta and t distributions against closed forms and scipy."""

from __future__ import annotations

import math

import pytest

from elasmo.stages.beta import beta_cdf, beta_quantile, t_cdf, t_quantile


@pytest.mark.parametrize("x", [0.0, 0.01, 0.3, 0.5, 0.99, 1.0])
def test_beta_of_one_parameter_is_a_power(x: float) -> None:
    assert beta_cdf(x, 3.0, 1.0) == pytest.approx(x**3, abs=1e-14)
    assert beta_cdf(x, 1.0, 2.5) == pytest.approx(1 - (1 - x) ** 2.5, abs=1e-14)


def test_t_with_one_degree_is_cauchy() -> None:
    for t in (-50.0, -1.0, 0.0, 0.5, 7.0):
        assert t_cdf(t, 1.0) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-13)


def test_both_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for a, b in ((0.05, 0.5), (0.5, 4.5), (400.0, 2.0), (1e3, 1e3)):
        for x in (1e-6, 0.02, 0.4, 0.9, 0.999):
            assert beta_cdf(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-9, abs=1e-14)
        for p in (0.05, 0.5, 0.95):
            assert beta_quantile(p, a, b) == pytest.approx(stats.beta.ppf(p, a, b), rel=1e-9, abs=1e-12)
    for freedom in (1.7, 4.0, 33.5):
        for p in (0.001, 0.05, 0.5, 0.95):
            assert t_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-8, abs=1e-7)
