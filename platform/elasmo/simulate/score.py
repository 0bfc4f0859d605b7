"""Scores of predictions against what was measured: relative errors by source, and rank correlation within sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Point:
    """A prediction beside a measurement.

    Attributes:
        source: whose measurement. held_out: what the constants were fitted without; empty where nothing was.
        sweep: rows with the same are a sweep, in which ranks are compared; empty: in none.
    """

    quantity: str
    source: str
    held_out: str
    predicted: float
    measured: float
    sweep: str = ""
    row: str = ""

    @property
    def error(self) -> float:
        """Relative, of the prediction."""
        return abs(self.predicted / self.measured - 1)


@dataclass(frozen=True)
class Score:
    """Errors of some points."""

    n: int
    median: float
    p90: float
    worst: float
    bias: float


def score(points: Sequence[Point]) -> Score:
    """n, median, 90th percentile and worst of the relative errors; bias is the median of predicted / measured - 1."""
    errors = np.array([point.error for point in points])
    signed = np.array([point.predicted / point.measured - 1 for point in points])
    return Score(
        len(points), float(np.median(errors)), float(np.quantile(errors, 0.9)), float(errors.max()),
        float(np.median(signed)),
    )  # fmt: skip


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings; None where either is constant or there are fewer than two."""
    x, y = np.array(a), np.array(b)
    dx, dy = np.sign(x[:, None] - x[None, :]), np.sign(y[:, None] - y[None, :])
    upper = np.triu_indices(len(x), 1)
    same, nx, ny = (dx * dy)[upper].sum(), (dx != 0)[upper].sum(), (dy != 0)[upper].sum()
    return None if nx == 0 or ny == 0 else float(same / np.sqrt(nx * ny))


def sweep_taus(points: Iterable[Point], least: int = 4) -> dict[str, float]:
    """Tau of each sweep with at least `least` points."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        if point.sweep:
            groups.setdefault(point.sweep, []).append(point)
    found = {}
    for name, own in groups.items():
        tau = kendall_tau([p.predicted for p in own], [p.measured for p in own]) if len(own) >= least else None
        if tau is not None:
            found[name] = tau
    return found
