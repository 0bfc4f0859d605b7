"""A fleet's events against a simulation that takes one step at a time, queueing theory, and conservation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from elasmo.simulate.accelerator import accelerator
from elasmo.simulate.deployment import Deployment
from elasmo.simulate.fleet import Fleet, FleetError, Served, serve
from elasmo.simulate.load import Request, bursts, poisson
from elasmo.simulate.pool_planner import PoolMetrics, PoolState, Replicas, proportional
from elasmo.simulate.served_model import served_model
from elasmo.simulate.serving_constants import default_constants
from elasmo.simulate.steady_state import Workload, steady, steps_of
from elasmo.simulate.step_clock import StepClock

CUT = Deployment(served_model("Llama-3.1-8B").model, accelerator("H100"))
CONSTANTS = default_constants()
ONE = Fleet(CUT, Replicas(0, 1), max_sequences=64)


def step_by_step(requests: Sequence[Request], most: int) -> tuple[list[float], list[float]]:
    """First-token and finish times on one co-located replica with room for all: a token of each at a time."""
    clock, now = StepClock(CUT, CONSTANTS), 0.0
    queue, running = list(range(len(requests))), {}
    prefilling: list[list[int]] = []  # request, tokens done
    first, finish = [math.nan] * len(requests), [math.nan] * len(requests)
    while queue or running or prefilling:
        if not running and not prefilling and requests[queue[0]].arrival_s > now:
            now = requests[queue[0]].arrival_s
        while queue and requests[queue[0]].arrival_s <= now and len(running) + len(prefilling) < most:
            prefilling.append([queue.pop(0), 0])
        budget, taken, pairs = CUT.step_tokens - len(running), [], 0.0
        for entry in prefilling:
            take = min(requests[entry[0]].prompt_tokens - entry[1], budget)
            if take <= 0:
                break
            taken.append((entry, take))
            pairs += take * (entry[1] + take / 2)
            budget -= take
        context = sum(requests[number].prompt_tokens + made for number, made in running.items())
        now += clock.step(len(running), context, sum(take for _, take in taken), pairs)
        for number in list(running):
            running[number] += 1
            if running[number] == requests[number].output_tokens:
                finish[number] = now
                del running[number]
        for entry, take in taken:
            entry[1] += take
            if entry[1] == requests[entry[0]].prompt_tokens:
                prefilling.remove(entry)
                first[entry[0]] = now
                if requests[entry[0]].output_tokens == 1:
                    finish[entry[0]] = now
                else:
                    running[entry[0]] = 1
    return first, finish


@pytest.mark.parametrize("load", [poisson(8, 60, 700, 30, seed=1), bursts(6, 60, 5000, 20, size=15, seed=2)])
def test_segments_give_what_single_steps_give(load: list[Request]) -> None:
    first, finish = step_by_step(load, 64)
    jobs = sorted(serve(ONE, load, CONSTANTS).jobs, key=lambda job: job.number)
    assert [job.first_s for job in jobs] == pytest.approx(first, rel=2e-3)
    assert [job.finish_s for job in jobs] == pytest.approx(finish, rel=2e-3)


def test_the_same_load_gives_the_same_numbers() -> None:
    runs = [serve(replace(ONE, replicas=Replicas(1, 2)), poisson(10, 200, 500, 50, seed=4)) for _ in range(2)]
    assert [job.finish_s for job in runs[0].jobs] == [job.finish_s for job in runs[1].jobs]
    assert runs[0].joules == runs[1].joules


@pytest.mark.parametrize("replicas", [Replicas(0, 3), Replicas(1, 2)])
def test_every_token_is_made_once(replicas: Replicas) -> None:
    load = bursts(20, 300, 3000, 80, seed=5)
    run = serve(replace(ONE, replicas=replicas), load)
    assert len(run.jobs) == 300 and not run.rejected
    assert all(job.generated == job.request.output_tokens and job.first_s <= job.finish_s for job in run.jobs)
    assert sum(count for _, count in run.itl) == sum(each.output_tokens - 1 for each in load)


def test_a_lone_prompt_waits_for_nothing() -> None:
    clock = StepClock(CUT, CONSTANTS)
    run = serve(ONE, [Request(0.0, 1000, 2)])
    assert run.jobs[0].first_s == pytest.approx(clock.step(0, 0, 1000, 1000 * 500))


def test_a_handed_over_prompt_waits_for_its_keys_and_values() -> None:
    """131,072 bytes a token over 50 GB/s, and the latency of the hand-over."""
    run = serve(replace(ONE, replicas=Replicas(1, 1)), [Request(0.0, 10_000, 2)])
    step = StepClock(CUT, CONSTANTS).step(1, 10_001)
    moved = 10_001 * 131_072
    assert run.moved_bytes == moved
    assert run.jobs[0].finish_s - run.jobs[0].first_s == pytest.approx(moved / 50e9 + 2e-3 + step)


def test_waiting_follows_queueing_theory() -> None:
    """One prompt at a time, equal lengths, Poisson arrivals: the M/D/1 queue, mean wait rho s / (2 (1 - rho))."""
    service = StepClock(CUT, CONSTANTS).step(0, 0, 2000, 2000 * 1000)
    load = poisson(0.7 / service, 20_000, 2000, 1, prompt_cv=0, output_cv=0, seed=3)
    run = serve(replace(ONE, max_sequences=1), load)
    wait = np.mean([job.first_s - job.request.arrival_s for job in run.jobs]) - service
    assert wait == pytest.approx(0.7 * service / (2 * 0.3), rel=0.1)


def test_a_constant_load_gives_what_the_steady_state_says() -> None:
    load = [Request(0.0, 400, 300)] * 600
    run = serve(replace(ONE, max_sequences=48), load)
    found = steady(CUT, steps_of(CUT, Workload(400, 300, 0, 0.0, 0.0), 48, CONSTANTS.routing), CONSTANTS)
    assert 600 * 300 / run.duration_s == pytest.approx(found.tokens_s, rel=0.08)


def test_a_full_cache_preempts_and_still_finishes_everyone() -> None:
    clock = StepClock(CUT, CONSTANTS)
    capacity = CUT.cache_tokens(CONSTANTS.cache_share)
    load = [Request(0.0, 3000, capacity // 60)] * 100
    run = serve(replace(ONE, max_sequences=256), load)
    assert sum(job.preempted for job in run.jobs) > 0 and len(run.jobs) == 100
    assert all(job.generated == capacity // 60 for job in run.jobs)
    assert clock.idle_w * run.duration_s < (run.joules or 0) < 700 * run.duration_s


def test_a_request_that_fits_nowhere_is_rejected_alone() -> None:
    run = serve(ONE, [Request(0.0, 10_000_000, 5), Request(0.0, 100, 5)])
    assert len(run.rejected) == 1 and len(run.jobs) == 1


def shared(count: int) -> list[Request]:
    """Two conversations whose prompts share all but their last block."""
    return [Request(0.5 * n, 5120, 4, (*range(100 * (n % 2), 100 * (n % 2) + 9), 1000 + n)) for n in range(count)]


def test_a_shared_prefix_is_computed_once_where_it_is() -> None:
    two = replace(ONE, replicas=Replicas(0, 2))
    by_prefix, by_turn = (serve(replace(two, routing=name), shared(20)) for name in ("prefix", "round"))
    assert all(job.cached == 9 * 512 for job in by_prefix.jobs if job.number >= 2)
    assert min(job.cached for job in by_turn.jobs if job.number >= 2) == 9 * 512, "turns happen to keep them apart"
    three = serve(replace(two, replicas=Replicas(0, 3), routing="round"), shared(20))
    assert sum(job.cached for job in three.jobs) < sum(job.cached for job in by_prefix.jobs)


def test_a_planner_grows_a_fleet_that_falls_behind_and_it_recovers() -> None:
    load = poisson(30, 3000, 1500, 100, seed=6)
    small = replace(ONE, replicas=Replicas(0, 1))
    grown = replace(small, planner=proportional(1.0, 0.05), budget=6, every_s=5, start_s=10)

    def late(run: Served) -> float:
        return float(np.quantile([job.first_s - job.request.arrival_s for job in run.jobs], 0.9))

    run = serve(grown, load)
    assert late(run) < late(serve(small, load)) / 2
    assert max(each.decode for _, each in run.timeline) > 1 and all(each.total <= 6 for _, each in run.timeline)


def test_a_planner_beyond_its_budget_is_refused() -> None:
    def greedy(state: PoolState, metrics: PoolMetrics) -> Replicas:
        return Replicas(0, state.budget + 1)

    with pytest.raises(FleetError, match="its budget is 1"):
        serve(replace(ONE, planner=greedy, every_s=0.01), poisson(10, 50, 100, 50))


def test_a_fleet_says_what_it_lacks() -> None:
    with pytest.raises(FleetError, match="decode=0 must be at least 1"):
        Fleet(CUT, Replicas(1, 0))
    with pytest.raises(FleetError, match="no requests"):
        serve(ONE, [])


def test_media_are_encoded_before_the_first_token_and_once() -> None:
    seeing = replace(
        ONE, deployment=Deployment(served_model("Qwen3-VL-8B").model, accelerator("H100"), step_tokens=512)
    )
    plain, seen = (serve(seeing, [Request(0.0, 950, 2, (), media)]) for media in (0.0, 1.0))
    clock = StepClock(seeing.deployment, CONSTANTS)
    encoder = clock.step(0, 0, 512, 0, 1.0) - clock.step(0, 0, 512, 0, 0.0)
    assert encoder > 1e-3
    assert seen.jobs[0].first_s - plain.jobs[0].first_s == pytest.approx(encoder)
