"""What to do about a step whose numbers are wrong: a pure function of what every rank saw, so that all decide alike.

A loss or gradient norm is wrong if it is not finite, or, where `train.faults.spike_z` is set, if the loss lies that
many robust standard deviations above the median of the steps before. What was decided once of a step stays so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from elasmo.config import FaultsConfig

Action = Literal["go", "skip", "rollback", "stop"]
SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation (Rousseeuw & Croux 1993, section 1)."""
FLOOR = 0.01
"""Least standard deviation, as a part of the median: on a flat curve everything would be a spike."""
FEWEST = 8
"""Losses before which nothing is called a spike."""


@dataclass(frozen=True)
class RankView:
    """What one rank knows before the optimizer moves.

    Attributes:
        loss_sum: of its part of the global batch; each target token is in one rank's sum.
        grad_norm: of the whole gradient before clipping; negative or not finite where it is wrong.
    """

    loss_sum: float
    grad_norm: float


@dataclass(frozen=True)
class Verdict:
    """What all ranks do with the step, why, and its loss; `known` where an earlier attempt decided."""

    action: Action
    reason: str = ""
    loss: float = math.nan
    known: bool = False


def decide(
    step: int,
    ranks: Sequence[RankView],
    target_tokens: int,
    window: Sequence[float],
    skipped: Mapping[int, str],
    faults: FaultsConfig,
) -> Verdict:
    """The one decision for all ranks.

    Args:
        step: as in the log, from 1.
        ranks: what each saw, in rank order; empty if the step is known to be skipped.
        target_tokens: of the global batch.
        window: losses of the last steps that were taken.
        skipped: steps of this run that were skipped before, and why.
    """
    loss = sum(rank.loss_sum for rank in ranks) / max(1, target_tokens)
    if step in skipped:
        return Verdict("skip", skipped[step], loss, known=True)
    reason, action = _fault(ranks, loss, window, faults)
    if not reason:
        return Verdict("go", loss=loss)
    if action != "stop" and len(skipped) >= faults.max_skips:
        return Verdict("stop", f"{reason}, and train.faults.max_skips={faults.max_skips} steps were skipped", loss)
    return Verdict(action, reason, loss)


def robust_z(value: float, window: Sequence[float]) -> float:
    """Robust standard deviations by which a value lies above the median of a window; minus infinity for a short one."""
    if len(window) < FEWEST:
        return -math.inf
    middle = median(window)
    spread = SIGMA * median([abs(item - middle) for item in window])
    return (value - middle) / max(spread, FLOOR * abs(middle), 1e-12)


def _fault(ranks: Sequence[RankView], loss: float, window: Sequence[float], faults: FaultsConfig) -> tuple[str, Action]:
    bad = [number for number, rank in enumerate(ranks) if not math.isfinite(rank.loss_sum)]
    if bad:
        return f"the loss on rank {', '.join(map(str, bad))} is not finite", faults.on_non_finite
    if not all(math.isfinite(rank.grad_norm) and rank.grad_norm >= 0 for rank in ranks):
        return "the gradient norm is not finite", faults.on_non_finite
    if faults.spike_z is not None:
        z = robust_z(loss, window)
        if z > faults.spike_z:
            return f"the loss {loss:.4g} is {z:.1f} robust deviations above the last {len(window)}", faults.on_spike
    return "", "go"
