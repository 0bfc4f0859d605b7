"""How many rows of each source a run has drawn by a step. Weights are in tokens and constant until a step changes them.

Counts follow from exact integer arithmetic on the phases of the schedule, so a step is found without those before it,
and a source that joins, leaves or changes its weight never moves the walk of another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SCALE = 1 << 40
"""Shares are rounded to this many parts, so that counting is exact."""

Weights = Mapping[int, float]
"""First step -> weight in tokens from then on; 0 before the first."""


@dataclass(frozen=True)
class Phase:
    """Steps of constant weights.

    Attributes:
        step: the first of them.
        parts: share of rows of each source, in parts of their sum.
        drawn: rows of each source before the phase.
    """

    step: int
    parts: tuple[int, ...]
    drawn: tuple[int, ...]


class MixtureSchedule:
    """Rows of each source by step.

    A source's share of rows is its weight divided by its mean row, so that weights hold in tokens whatever the sizes of
    rows. Of every prefix of the run each source has its share, short of less than one row for each source before it.

    Args:
        mean_tokens: decoder tokens of each source's mean row.
        weights: by source.
        global_batch: rows of a step.

    Raises:
        ValueError: a weight is negative, or all weights are 0 from some step on.
    """

    def __init__(self, mean_tokens: Sequence[float], weights: Sequence[Weights], global_batch: int) -> None:
        self.global_batch = global_batch
        self.phases: list[Phase] = []
        for step in sorted({0, *(step for source in weights for step in source)}):
            parts = _parts(mean_tokens, [weight_at(source, step) for source in weights], step)
            drawn = self.drawn(step) if self.phases else tuple(0 for _ in weights)
            self.phases.append(Phase(step, parts, drawn))

    def drawn(self, step: int) -> tuple[int, ...]:
        """Rows of each source that the steps before `step` read; they sum to `step` global batches."""
        phase = self.phases[bisect_right([p.step for p in self.phases], step) - 1]
        fresh = _divide((step - phase.step) * self.global_batch, phase.parts)
        return tuple(before + more for before, more in zip(phase.drawn, fresh, strict=True))

    def counts(self, step: int) -> tuple[int, ...]:
        """Rows of each source in `step`."""
        return tuple(b - a for a, b in zip(self.drawn(step), self.drawn(step + 1), strict=True))


def weight_at(weights: Weights, step: int) -> float:
    """The weight that holds in `step`."""
    begun = [first for first in weights if first <= step]
    return float(weights[max(begun)]) if begun else 0.0


def until(weights: Weights, step: int) -> list[list[float]]:
    """[first step, weight] of the changes that steps before `step` knew."""
    return [[first, float(weights[first])] for first in sorted(weights) if first < step]


def _parts(mean_tokens: Sequence[float], weights: Sequence[float], step: int) -> tuple[int, ...]:
    if any(weight < 0 for weight in weights):
        raise ValueError(f"a weight from step {step} on is {min(weights)}; weights are 0 or more")
    rows = np.array([w / m for w, m in zip(weights, mean_tokens, strict=True)])
    if rows.sum() <= 0:
        raise ValueError(f"every weight is 0 from step {step} on; give one source a weight")
    # At least one part: a weight so small that its share rounds to nothing was still asked for.
    return tuple(max(1, round(share * SCALE)) if share > 0 else 0 for share in rows / rows.sum())


def _divide(rows: int, parts: Sequence[int]) -> tuple[int, ...]:
    """The first `rows` rows of a phase, by source. Each count grows with `rows`, by no more than `rows` does.

    Sources are taken off one by one, each with its share of what those before it left, rounded down: the rest after
    one keeps growing by 0 or 1 a row, which rounding every source by itself would not promise.
    """
    counts, tail = [], sum(parts)
    for part in parts:
        count = rows * part // tail if tail else 0
        counts.append(count)
        rows, tail = rows - count, tail - part
    return tuple(counts)
