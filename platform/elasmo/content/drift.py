"""How far two distributions lie apart: PSI, the two-sample Kolmogorov-Smirnov test and the chi-squared test.

Each gives a size and, where it has one, the probability that samples of one distribution differ as much.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elasmo.content.sketch import Numbers

PSI_FLOOR = 1e-3
"""Least share of a bin: without it one row in a bin that was empty would give any PSI."""
PSI_BINS, KS_POINTS = 10, 200


@dataclass(frozen=True)
class Difference:
    """The statistic, a size in 0..1 that does not grow with the number of rows, and the p-value."""

    statistic: float
    size: float
    p: float


def psi(before: ArrayLike, after: ArrayLike) -> float:
    """Population stability index of two lists of shares of the same bins: sum of (a - b) ln(a / b) (Siddiqi 2006)."""
    b = np.maximum(np.asarray(before, dtype=np.float64), PSI_FLOOR)
    a = np.maximum(np.asarray(after, dtype=np.float64), PSI_FLOOR)
    return float(np.sum((a - b) * np.log(a / b)))


def psi_of_numbers(before: Numbers, after: Numbers, bins: int = PSI_BINS) -> float:
    """PSI on the quantile bins of `before`; equal quantiles (a value that many rows share) are one edge."""
    edges = sorted(set(before.quantiles([n / bins for n in range(bins)])))
    return psi(before.shares(edges), after.shares(edges))


def psi_of_mixes(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """PSI over the categories of both."""
    shares = [[counts.get(key, 0) / sum(counts.values()) for key in {**before, **after}] for counts in (before, after)]
    return psi(*shares)


def ks_of_numbers(before: Numbers, after: Numbers) -> Difference:
    """Two-sample Kolmogorov-Smirnov test from the sketches' cumulative shares; off by at most their rank errors.

    The supremum is taken at the quantiles of both, which holds it to within 1 / `KS_POINTS`.
    """
    ranks = [n / KS_POINTS for n in range(KS_POINTS + 1)]
    points = sorted({*before.quantiles(ranks), *after.quantiles(ranks)})
    gap = np.abs(np.cumsum(before.shares(points)) - np.cumsum(after.shares(points)))
    distance = float(gap.max())
    return Difference(distance, distance, ks_p(distance, before.count, after.count))


def ks_p(distance: float, rows: int, other_rows: int) -> float:
    """Asymptotic p-value of a two-sample KS distance, with Stephens' correction (Numerical Recipes, 14.3.3)."""
    if distance <= 0:
        return 1.0
    root = math.sqrt(rows * other_rows / (rows + other_rows))
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.2:  # The series converges slowly there, and the value is 1 to twelve digits.
        return 1.0
    terms = (math.exp(-2 * k * k * scaled * scaled) * (1 if k % 2 else -1) for k in range(1, 101))
    return min(1.0, max(0.0, 2 * math.fsum(terms)))


def chi2_of_mixes(before: Mapping[str, int], after: Mapping[str, int]) -> Difference:
    """Chi-squared test of homogeneity of two lists of counts; the size is Cramér's V."""
    keys = list({**before, **after})
    counts = np.array([[mix.get(key, 0) for key in keys] for mix in (before, after)], dtype=np.float64)
    statistic = _chi2(counts)
    return Difference(statistic, math.sqrt(statistic / counts.sum()), chi2_p(statistic, len(keys) - 1))


def _chi2(counts: NDArray[np.float64]) -> float:
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    return float(np.sum((counts - expected) ** 2 / expected))


def chi2_p(statistic: float, freedom: int) -> float:
    """P(X >= statistic) of a chi-squared variable: the regularized upper incomplete gamma function Q(k/2, x/2)."""
    if freedom <= 0 or statistic <= 0:
        return 1.0
    a, x = freedom / 2, statistic / 2
    scale = math.exp(-x + a * math.log(x) - math.lgamma(a))
    return 1.0 - scale * _series(a, x) if x < a + 1 else scale * _fraction(a, x)


def _series(a: float, x: float) -> float:
    """Lower incomplete gamma by its series, without the scale (Numerical Recipes, 6.2.5)."""
    term = total = 1 / a
    n = a
    while abs(term) > abs(total) * 1e-15:
        n += 1
        term *= x / n
        total += term
    return total


def _fraction(a: float, x: float) -> float:
    """Upper incomplete gamma by Lentz's continued fraction, without the scale (Numerical Recipes, 6.2.7)."""
    b = x + 1 - a
    c, d = 1e300, 1 / b
    value = d
    for i in range(1, 10_000):
        an = -i * (i - a)
        b += 2
        d = 1 / (an * d + b)
        c = b + an / c
        value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return value


def outside(before: Numbers, after: Numbers) -> float:
    """Share of `after` below the minimum or above the maximum of `before`."""
    if before.minimum is None or before.maximum is None or not after.count:
        return 0.0
    low = max(math.nextafter(float(before.minimum), -math.inf), -sys.float_info.max)
    edges: Sequence[float] = sorted({low, float(before.maximum)})
    shares = after.shares(edges)
    return float(shares[0] + shares[-1])
