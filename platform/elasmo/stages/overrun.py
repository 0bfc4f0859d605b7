"""How long a run will take and how much memory it will need: a Bayesian linear regression of logarithms.

ln y = intercept + slope ln size + noise, with a normal-inverse-gamma prior, so that the prediction is a Student's t
distribution that knows how few the runs were and how far beyond them the next one lies (Gelman et al., Bayesian Data
Analysis, 14). The prior of the slope keeps the estimate sane where all past runs had one size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasmo.stages.beta import t_cdf, t_quantile

SLOPE_SD = 0.5
"""Of the prior of the slope."""
NOISE, NOISE_RUNS = 0.1, 2.0
"""Prior guess of the noise (10 %) and the runs that it is worth."""
SAME_SIZE = 0.1
"""Sizes that differ by less, in their logarithms, say nothing of the slope."""
DRAWS = 400
"""Of the posterior, for the interval of a chance; always the same ones."""


@dataclass(frozen=True)
class Prediction:
    """The distribution of ln y of the next run: location + scale · t(freedom).

    Attributes:
        slope: the exponent: 1 where y grows as the size does; None where all sizes were about the same.
        draws: [draws, 2] location and noise under samples of the posterior.
    """

    location: float
    scale: float
    freedom: float
    slope: float | None
    draws: NDArray[np.float64]

    def quantile(self, p: float) -> float:
        """The y that is not exceeded with probability p."""
        return math.exp(min(700.0, self.location + self.scale * t_quantile(p, self.freedom)))

    def above(self, limit: float) -> float:
        """The chance that y exceeds a limit."""
        return 1.0 - t_cdf((math.log(limit) - self.location) / self.scale, self.freedom)

    def above_interval(self, limit: float) -> tuple[float, float]:
        """5 % and 95 % quantiles of that chance, as far as it is not known what the true line and noise are."""
        z = (math.log(limit) - self.draws[:, 0]) / self.draws[:, 1]
        chances = sorted(0.5 * math.erfc(value / math.sqrt(2)) for value in z.tolist())
        return chances[len(chances) // 20], chances[-1 - len(chances) // 20]


def predict(
    sizes: Sequence[float] | None, values: Sequence[float], weights: Sequence[float], next_size: float, slope: float
) -> Prediction:
    """The next value.

    Args:
        sizes: of past inputs, above 0; None where they are unknown.
        values: what past runs took, above 0.
        weights: of past runs, 1 for one that counts in full.
        next_size: of the next input.
        slope: the prior's: 1 for time, less for memory, which has a floor.
    """
    w, y = np.asarray(weights, dtype=np.float64), np.log(np.asarray(values, dtype=np.float64))
    x = np.zeros(len(y)) if sizes is None else np.log(np.asarray(sizes, dtype=np.float64))
    centre, at = float(np.average(x, weights=w)), 0.0
    if sizes is not None:
        at = math.log(next_size) - centre
    design = np.column_stack([np.ones(len(y)), x - centre])
    prior = np.diag([1e-6, (NOISE / SLOPE_SD) ** 2])
    mean0 = np.array([0.0, slope])
    precision = prior + design.T @ (design * w[:, None])
    covariance = np.linalg.inv(precision)
    mean = covariance @ (prior @ mean0 + design.T @ (w * y))
    a = (NOISE_RUNS + w.sum() - 1) / 2  # one run's worth is spent on the intercept, whose prior is flat
    residual = y - design @ mean
    drawn = mean - mean0
    b = NOISE_RUNS / 2 * NOISE**2 + (np.sum(w * residual**2) + drawn @ prior @ drawn) / 2
    row = np.array([1.0, at])
    spread = 1 + row @ covariance @ row
    generator = np.random.default_rng(0)
    noise = np.sqrt(b / generator.gamma(a, size=DRAWS))
    location = float(row @ mean)
    lines = location + noise * math.sqrt(row @ covariance @ row) * generator.standard_normal(DRAWS)
    told = float(np.average((x - centre) ** 2, weights=w)) >= SAME_SIZE**2
    draws = np.column_stack([lines, noise])
    return Prediction(location, math.sqrt(b / a * spread), 2 * a, float(mean[1]) if told else None, draws)
