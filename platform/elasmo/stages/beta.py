"""The beta distribution, and Student's t distribution through it: what a forecast's chances and intervals come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

TINY = 1e-300
HALVINGS = 60


def beta_cdf(x: float, a: float, b: float) -> float:
    """P(X <= x) of Beta(a, b): the regularized incomplete beta function by its continued fraction (NR 6.4)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - beta_cdf(1 - x, b, a)
    head = a * math.log(x) + b * math.log1p(-x) - (math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))
    return math.exp(head) / a * _fraction(x, a, b)


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x with P(X <= x) = p, by halving."""
    return _root(lambda x: beta_cdf(x, a, b), p, 0.0, 1.0)


def t_cdf(t: float, freedom: float) -> float:
    """P(T <= t) of Student's t."""
    tail = beta_cdf(freedom / (freedom + t * t), freedom / 2, 0.5) / 2
    return 1 - tail if t > 0 else tail


@lru_cache(256)
def t_quantile(p: float, freedom: float) -> float:
    """The t with P(T <= t) = p, by halving; beyond a million in either direction it is a million."""
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1 - p, freedom)
    return _root(lambda t: t_cdf(t, freedom), p, 0.0, 1e6)


def _root(function: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return (low + high) / 2


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's method."""
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > TINY else TINY)
    value = d
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 + term * d, 1 + term / c
            d, c = 1 / (d if abs(d) > TINY else TINY), c if abs(c) > TINY else TINY
            value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return value
