"""PSI, Kolmogorov-Smirnov and chi-squared against published tables, closed forms and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from elasmo.content.drift import chi2_of_mixes, chi2_p, ks_of_numbers, ks_p, outside, psi, psi_of_mixes, psi_of_numbers
from elasmo.content.sketch import RANK_ERROR, Numbers


def numbers(values: np.ndarray) -> Numbers:
    return Numbers.of(values)


def test_psi_of_two_bins_is_its_closed_form() -> None:
    """Half and half against three to one: 0.25 ln 1.5 - 0.25 ln 0.5 = 0.25 ln 3."""
    assert psi([0.5, 0.5], [0.75, 0.25]) == pytest.approx(0.25 * math.log(3))
    assert psi_of_mixes({"a": 50, "b": 50}, {"b": 25, "a": 75}) == pytest.approx(0.25 * math.log(3))


def test_psi_is_zero_for_equal_and_symmetric() -> None:
    assert psi([0.2, 0.8], [0.2, 0.8]) == 0
    assert psi([0.2, 0.8], [0.6, 0.4]) == pytest.approx(psi([0.6, 0.4], [0.2, 0.8]))


def test_a_category_that_is_new_in_one_row_of_a_hundred_is_no_drift() -> None:
    assert psi_of_mixes({"a": 1000}, {"a": 990, "b": 10}) < 0.1 < psi_of_mixes({"a": 1000}, {"a": 900, "b": 100})


def test_psi_of_numbers_uses_the_quantiles_of_the_first() -> None:
    """A uniform sample moved by half its width empties five of ten bins and fills the last with six tenths."""
    before, after = numbers(np.arange(1000) / 1000), numbers(np.arange(1000) / 1000 + 0.5)
    floor = 1e-3
    emptied = 5 * (floor - 0.1) * math.log(floor / 0.1)
    assert psi_of_numbers(before, before) == pytest.approx(0, abs=1e-6)
    assert psi_of_numbers(before, after) == pytest.approx(emptied + 0.5 * math.log(0.6 / 0.1), rel=0.15)


@pytest.mark.parametrize(("statistic", "freedom", "p"), [(3.841, 1, 0.05), (18.307, 10, 0.05), (6.635, 1, 0.01)])
def test_chi2_p_is_the_table_of_critical_values(statistic: float, freedom: int, p: float) -> None:
    assert chi2_p(statistic, freedom) == pytest.approx(p, rel=2e-3)


def test_chi2_p_is_the_closed_form_for_two_degrees_of_freedom() -> None:
    for statistic in (0.01, 1.0, 5.0, 40.0, 900.0):
        assert chi2_p(statistic, 2) == pytest.approx(math.exp(-statistic / 2), rel=1e-9)
    assert chi2_p(0, 4) == 1


def test_tests_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(7)
    left, right = random.normal(size=350), random.normal(0.3, 1.2, size=390)
    found, expected = ks_of_numbers(numbers(left), numbers(right)), stats.ks_2samp(left, right, method="asymp")
    assert found.statistic == pytest.approx(expected.statistic, abs=0.01)
    assert ks_p(expected.statistic, 350, 390) == pytest.approx(expected.pvalue, rel=0.2)
    mixes = {"a": 30, "b": 50, "c": 20}, {"a": 60, "b": 45, "d": 15}
    counts = np.array([[30, 50, 20, 0], [60, 45, 0, 15]])
    whole = stats.chi2_contingency(counts, correction=False)
    test = chi2_of_mixes(*mixes)
    assert (test.statistic, test.p) == pytest.approx((whole.statistic, whole.pvalue), rel=1e-9)
    assert test.size == pytest.approx(stats.contingency.association(counts, method="cramer"), rel=1e-9)


def test_ks_of_sketches_above_their_exact_size_is_within_their_error() -> None:
    random = np.random.default_rng(3)
    left, right = random.uniform(size=20_000), random.uniform(0.2, 1.2, size=20_000)
    assert ks_of_numbers(numbers(left), numbers(right)).statistic == pytest.approx(0.2, abs=2 * RANK_ERROR + 0.02)
    assert ks_of_numbers(numbers(left), numbers(left)).statistic < 2 * RANK_ERROR


def test_outside_counts_both_ends_and_not_the_ends_themselves() -> None:
    assert outside(numbers(np.array([1, 2, 3])), numbers(np.array([0, 1, 3, 4]))) == 0.5
    assert outside(numbers(np.array([])), numbers(np.array([1]))) == 0
    ends = np.array([-1.7976931348623157e308, 1.7976931348623157e308])
    assert outside(numbers(ends), numbers(ends[1:])) == 0 and outside(numbers(ends[1:]), numbers(ends)) == 0.5
