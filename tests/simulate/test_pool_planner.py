from __future__ import annotations

from dataclasses import replace

from elasmo.simulate.pool_planner import PoolMetrics, PoolState, Replicas, proportional

CALM = PoolMetrics(10.0, 50, 50_000, 5_000, 0, 0, 0.7, 0.7, 0.7, 0.2, 0.02)
PLAN = proportional(ttft_s=1.0, tpot_s=0.05)


def test_pools_at_their_target_stay() -> None:
    assert PLAN(PoolState(0.0, Replicas(2, 4), 16), CALM) == Replicas(2, 4)


def test_late_first_tokens_grow_prefill_and_late_next_ones_decode() -> None:
    state = PoolState(0.0, Replicas(2, 4), 16)
    assert PLAN(state, replace(CALM, ttft_p90_s=3.0)) == Replicas(3, 4)
    assert PLAN(state, replace(CALM, tpot_p90_s=0.2)) == Replicas(2, 6)
    assert PLAN(PoolState(0.0, Replicas(0, 4), 16), replace(CALM, ttft_p90_s=3.0)) == Replicas(0, 6)


def test_idle_pools_shrink_to_one() -> None:
    idle = replace(CALM, busy_prefill=0.0, busy_decode=0.0, cache_use=0.0, ttft_p90_s=None, tpot_p90_s=None)
    assert PLAN(PoolState(0.0, Replicas(4, 4), 16), idle) == Replicas(1, 1)


def test_a_budget_is_kept_and_neither_pool_starves() -> None:
    found = PLAN(PoolState(0.0, Replicas(4, 4), 8), replace(CALM, busy_prefill=1.0, cache_use=1.0, ttft_p90_s=9.0))
    assert found.total == 8 and min(found.prefill, found.decode) >= 3
