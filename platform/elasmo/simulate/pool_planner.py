"""How many replicas each pool should have: a pure function from what was seen to what is wanted.

`Planner` is the interface; any function of that shape can drive the simulated fleet, Elasmo's own included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Replicas:
    """Replicas of each pool; a fleet without a prefill pool has prefill 0 and does both in `decode`."""

    prefill: int
    decode: int

    @property
    def total(self) -> int:
        return self.prefill + self.decode


@dataclass(frozen=True)
class PoolState:
    """The fleet at a moment: replicas ready or starting, and the most there may be of both pools together."""

    time_s: float
    replicas: Replicas
    budget: int


@dataclass(frozen=True)
class PoolMetrics:
    """What was seen since the planner was last asked.

    Attributes:
        window_s: for how long. requests: that arrived. prompt_tokens, output_tokens: of them, and generated.
        waiting_prefill, waiting_decode: requests that wait now.
        busy_prefill, busy_decode: share of the replicas' time in steps.
        cache_use: share of the decode replicas' KV cache in use or waited for.
        ttft_p90_s, tpot_p90_s: of requests that got their first token, or finished; None without any.
    """

    window_s: float
    requests: int
    prompt_tokens: int
    output_tokens: int
    waiting_prefill: int
    waiting_decode: int
    busy_prefill: float
    busy_decode: float
    cache_use: float
    ttft_p90_s: float | None
    tpot_p90_s: float | None


Planner = Callable[[PoolState, PoolMetrics], Replicas]


def proportional(ttft_s: float, tpot_s: float, busy: float = 0.7, least: int = 1) -> Planner:
    """A planner that keeps pools `busy`, and grows one at once by half when its latency or its cache says so."""

    def plan(state: PoolState, metrics: PoolMetrics) -> Replicas:
        now = state.replicas
        prefill = math.ceil(now.prefill * metrics.busy_prefill / busy) if now.prefill else 0
        decode = math.ceil(
            now.decode * max(metrics.busy_decode / busy if not now.prefill else 0.0, metrics.cache_use / busy)
        )
        late_first = metrics.ttft_p90_s is not None and metrics.ttft_p90_s > ttft_s
        late_next = metrics.tpot_p90_s is not None and metrics.tpot_p90_s > tpot_s
        if now.prefill and (late_first or metrics.waiting_prefill > 2 * now.prefill):
            prefill = max(prefill, math.ceil(now.prefill * 1.5))
        if late_next or (late_first and not now.prefill) or metrics.waiting_decode > 2 * now.decode:
            decode = max(decode, math.ceil(now.decode * 1.5))
        decode = max(decode, least)
        prefill = max(prefill, least) if now.prefill else 0
        while prefill + decode > state.budget:  # the larger pool gives, so that neither starves
            if prefill > decode:
                prefill -= 1
            else:
                decode -= 1
        return Replicas(prefill, decode)

    return plan
