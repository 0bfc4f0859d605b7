"""What failures and checkpoints leave of a run's time, and what shrinking instead of waiting gains.

First order in the time between checkpoints (Young 1974; Daly 2006): N accelerators fail N times as often as one,
each loses half an interval and a recovery, and each interval pays for its checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Failures:
    """How a cluster fails and how a run comes back.

    Attributes:
        mtbf_h: mean hours between failures of one accelerator with its share of host and network. The 54 days of Llama
            3 on 16,384 H100 had 419 unexpected interruptions (Dubey et al. 2024, table 5): 50,700 hours.
        restart_s: from a failure to the next step when the lost place is filled.
        replace_s: until a replacement for the lost node is there.
        shrink_s: from a failure to the next step on what is left.
        checkpoint_s: seconds that saving a checkpoint stops the step loop.
    """

    mtbf_h: float = 50_700.0
    restart_s: float = 180.0
    replace_s: float = 1800.0
    shrink_s: float = 20.0
    checkpoint_s: float = 5.0


@dataclass(frozen=True)
class Goodput:
    """Shares of time.

    Attributes:
        useful: of steps that count, at full speed. checkpoints, redone, recovery, shrunk: what the rest goes to.
        interval_s: between checkpoints, the one that costs least.
    """

    useful: float
    checkpoints: float
    redone: float
    recovery: float
    shrunk: float
    interval_s: float


def goodput(accelerators: int, failures: Failures, node: int = 8, elastic: bool = False) -> Goodput:
    """Of a run on `accelerators`, in nodes of `node`.

    Args:
        elastic: go on without the lost node until it is replaced, instead of waiting for the replacement.

    Raises:
        ValueError: times or counts that are not positive.
    """
    if accelerators < 1 or failures.mtbf_h <= 0:
        raise ValueError(f"accelerators={accelerators} and mtbf_h={failures.mtbf_h:g} must be positive.")
    between = failures.mtbf_h * 3600 / accelerators
    # Without overhead a checkpoint at every step would be free; a second is the shortest interval that means anything.
    interval = max(1.0, math.sqrt(2 * failures.checkpoint_s * between))
    saved = failures.checkpoint_s / (interval + failures.checkpoint_s)
    again = interval / 2 / between
    away = failures.shrink_s if elastic else failures.restart_s + failures.replace_s
    # A shrunk run does (N - node) / N of the work until the replacement is there, then stops once more to grow.
    shrunk = 0.0
    if elastic:
        away *= 2
        shrunk = failures.replace_s * min(1.0, node / accelerators) / between
    lost = again + away / between + shrunk
    scale = 1 / (1 + lost)
    return Goodput(
        (1 - saved) * scale, saved * scale, again * scale, away / between * scale, shrunk * scale, interval
    )  # fmt: skip
