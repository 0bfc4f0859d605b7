"""Synthetic histories of a stage: what past runs would have been, if a known law had made them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from elasmo.stages.stage_run import StageRun

Law = Callable[[np.random.Generator, float], float]
"""Chance that a run of a size fails."""


def history(
    generator: np.random.Generator,
    runs: int,
    fails: Callable[[float], float] = lambda size: 0.0,
    slope: float = 1.0,
    noise: float = 0.1,
    **changes: Any,
) -> list[StageRun]:
    """Runs of stage `silver`: sizes lognormal about 1 GB, seconds and memory powers of the size, with noise."""
    made = []
    for number in range(runs):
        size = 1e9 * float(np.exp(generator.normal(0, 0.7)))
        bad = bool(generator.random() < fails(size))
        seconds = 60 * (size / 1e9) ** slope * float(np.exp(generator.normal(0, noise)))
        memory = int(4e9 * (size / 1e9) ** 0.5 * float(np.exp(generator.normal(0, noise))))
        reached = float(generator.random()) if bad else 1.0
        made.append(
            StageRun(
                "silver",
                "pets",
                float(number),
                "failed" if bad else "done",
                "broken" if bad else None,
                seconds * reached,
                seconds * reached * 0.95,
                int(memory * max(reached, 0.2)),
                "simulated",
                rows_in=int(size / 1e4),
                bytes_in=int(size),
                synthetic=True,
                **changes,
            )
        )
    return made


def reliability(said: list[float], came: list[bool], edges: tuple[float, ...]) -> list[tuple[int, float, float, float]]:
    """Per bin of the stated chance: how many, the mean stated, the frequency, and its standard error."""
    chances, true = np.array(said), np.array(came, dtype=float)
    found = []
    for low, high in pairwise(edges):
        held = (chances >= low) & (chances < high)
        count = int(held.sum())
        if count:
            stated, seen = float(chances[held].mean()), float(true[held].mean())
            error = float(np.sqrt(max(stated * (1 - stated), 1e-6) / count))
            found.append((count, stated, seen, error))
    return found


def brier(said: list[float], came: list[bool]) -> float:
    return float(np.mean((np.array(said) - np.array(came, dtype=float)) ** 2))
