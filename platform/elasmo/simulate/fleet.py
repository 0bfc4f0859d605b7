"""A simulated fleet: requests arrive, are routed, prefilled, handed over and decoded, event by event.

Deterministic: the same fleet and load give the same numbers. Prefill and decode may share replicas (co-located) or have
pools of their own, with the KV cache of each prompt sent over a link between them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from elasmo.simulate.deployment import Deployment
from elasmo.simulate.load import Request
from elasmo.simulate.pool_planner import Planner, PoolMetrics, PoolState, Replicas
from elasmo.simulate.replica import Job, Replica, Role
from elasmo.simulate.serving_constants import ServingConstants, default_constants
from elasmo.simulate.step_clock import StepClock

Routing = Literal["prefix", "least", "round"]


class FleetError(ValueError):
    """A fleet that cannot be, in a sentence."""


@dataclass(frozen=True)
class Fleet:
    """What serves a load.

    Attributes:
        deployment: of each replica. prefill: of prefill replicas, where they are cut otherwise.
        replicas: at the start.
        routing: to the replica with the fewest tokens ahead, a held prefix counted as done (`prefix`) or not (`least`),
            or in turn (`round`).
        max_sequences: that run at once in a replica.
        link_bandwidth: bytes/s of one replica to the other pool; None: its accelerators' scale-out links together.
        link_latency_s: of a hand-over, software included.
        planner, every_s, start_s, budget: autoscaling: asked that often, replicas take so long to start, and there may
            be so many of both pools together.
    """

    deployment: Deployment
    replicas: Replicas
    prefill: Deployment | None = None
    routing: Routing = "prefix"
    max_sequences: int = 256
    link_bandwidth: float | None = None
    link_latency_s: float = 2e-3
    planner: Planner | None = None
    every_s: float = 10.0
    start_s: float = 30.0
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.replicas.decode < 1 or self.replicas.prefill < 0:
            raise FleetError(f"decode={self.replicas.decode} must be at least 1 and prefill not negative.")
        if self.max_sequences < 1:
            raise FleetError(f"max_sequences={self.max_sequences} must be at least 1.")

    @property
    def disaggregated(self) -> bool:
        return self.replicas.prefill > 0


@dataclass(frozen=True)
class Served:
    """What happened to a load.

    Attributes:
        jobs: every request. rejected: those that fit no replica's KV cache.
        itl: inter-token latencies as (seconds, count).
        joules: of all replicas while they were there; None where power is not known.
        duration_s: until the last request finished.
        replica_s: replicas times the seconds they were there. timeline: replicas over time.
        moved_bytes: of KV cache between pools.
    """

    fleet: Fleet
    jobs: list[Job]
    rejected: list[Job]
    itl: list[tuple[float, int]]
    joules: float | None
    duration_s: float
    replica_s: float
    timeline: list[tuple[float, Replicas]]
    moved_bytes: float
    busy: dict[str, float]


def serve(fleet: Fleet, requests: Sequence[Request], constants: ServingConstants | None = None) -> Served:
    """Runs the load to its end.

    Raises:
        FleetError: no requests. DeploymentError: the weights do not fit.
    """
    if not requests:
        raise FleetError("The load has no requests.")
    return _Run(fleet, requests, constants or default_constants()).run()


class _Run:
    """The state of one simulation."""

    def __init__(self, fleet: Fleet, requests: Sequence[Request], constants: ServingConstants) -> None:
        self.fleet, self.constants = fleet, constants
        self.jobs = [Job(n, each, each.prompt_tokens) for n, each in enumerate(requests)]
        self.rejected: list[Job] = []
        self.events: list[tuple[float, int, str, Any]] = []
        self.order = 0
        self.clocks: dict[str, tuple[StepClock, int]] = {}
        for pool, cut in (("decode", fleet.deployment), ("prefill", fleet.prefill or fleet.deployment)):
            self.clocks[pool] = (StepClock(cut, constants), cut.cache_tokens(constants.cache_share))
        self.replicas: list[Replica] = []
        self.links: dict[int, float] = {}
        self.turn = 0
        self.ready: dict[int, Replica] = {}
        self.left = len(self.jobs)
        self.moved = 0.0
        self.starting = {"prefill": 0, "decode": 0}
        self.timeline: list[tuple[float, Replicas]] = []
        self.seen = _Window()
        for pool, count in (("prefill", fleet.replicas.prefill), ("decode", fleet.replicas.decode)):
            for _ in range(count):
                self._add(pool, 0.0)

    def _push(self, time: float, kind: str, payload: Any) -> None:
        self.order += 1
        heapq.heappush(self.events, (time, self.order, kind, payload))

    def _add(self, pool: str, now: float) -> None:
        clock, capacity = self.clocks[pool]
        role: Role = "prefill" if pool == "prefill" else ("decode" if self.fleet.disaggregated else "both")
        self.replicas.append(Replica(len(self.replicas), role, clock, capacity, self.fleet.max_sequences, now))

    def _pool(self, role: Role) -> list[Replica]:
        return [each for each in self.replicas if each.role == role and math.isnan(each.gone_s)]

    def _count(self) -> Replicas:
        decode: Role = "decode" if self.fleet.disaggregated else "both"
        return Replicas(
            sum(not each.draining for each in self._pool("prefill")),
            sum(not each.draining for each in self._pool(decode)),
        )

    def run(self) -> Served:
        for job in self.jobs:
            self._push(job.request.arrival_s, "arrival", job)
        if self.fleet.planner is not None:
            self._push(self.fleet.every_s, "plan", None)
        self.timeline.append((0.0, self._count()))
        now = 0.0
        while self.events and self.left:
            now, _, kind, payload = heapq.heappop(self.events)
            if kind == "segment":
                replica, version = payload
                if replica.version == version:
                    self._ended(replica, now)
            elif kind == "arrival":
                self._arrived(payload, now)
            elif kind == "moved":
                self._moved(payload, now)
            elif kind == "plan":
                self._plan(now)
            elif kind == "ready":
                self.starting[payload] -= 1
                self._add(payload, now)
                self.timeline.append((now, self._count()))
            if self.ready and not (self.events and self.events[0][0] <= now):
                self._start_ready(now)
        return self._served(now)

    def _arrived(self, job: Job, now: float) -> None:
        if math.isnan(job.first_s):
            self.seen.arrived(job)
        whole = job.request.prompt_tokens + job.request.output_tokens
        smallest = min(self.clocks[pool][1] for pool in self.clocks)
        if whole > smallest:
            self.rejected.append(job)
            self.left -= 1
            return
        self._send(self._route(self._pool("prefill" if self.fleet.disaggregated else "both"), job), job, now)

    def _route(self, pool: list[Replica], job: Job) -> Replica:
        ready = [each for each in pool if not each.draining] or pool
        if self.fleet.routing == "round":
            self.turn += 1
            return ready[self.turn % len(ready)]
        prefix = self.fleet.routing == "prefix"
        blocks, prompt = job.request.blocks, job.held
        return min(ready, key=lambda each: (each.load(blocks, prompt, prefix), each.number))

    def _send(self, replica: Replica, job: Job, now: float) -> None:
        cut = replica.enqueue(job, now)
        if replica.segment is None:
            self.ready[replica.number] = replica
        elif cut:
            self._push(replica.segment.end_s, "segment", (replica, replica.version))

    def _start_ready(self, now: float) -> None:
        """Starts the replicas without a segment once all that happens at this moment has."""
        ready, self.ready = self.ready, {}
        for replica in ready.values():
            self._start(replica, now)

    def _start(self, replica: Replica, now: float) -> None:
        segment, lost = replica.start(now)
        if segment is not None:
            self._push(segment.end_s, "segment", (replica, replica.version))
        elif replica.draining and replica.idle:
            replica.gone_s = now
            self.timeline.append((now, self._count()))
        if replica.role == "decode":  # its cache is gone: the prompt and what was sent are prefilled again
            for job in lost:
                self._push(now, "arrival", job)

    def _ended(self, replica: Replica, now: float) -> None:
        out = replica.end(now)
        for job in out.finished:
            self.left -= 1
            self.seen.finished(job)
        for job in out.prefilled:
            self._hand_over(replica, job, now)
        self.ready[replica.number] = replica

    def _hand_over(self, replica: Replica, job: Job, now: float) -> None:
        cut = replica.clock.deployment
        size = job.held * cut.cache_bytes_per_token * cut.tp * cut.pp
        rate = self.fleet.link_bandwidth or cut.chip.scaleout_bandwidth * cut.accelerators
        if rate <= 0:
            raise FleetError(f"link_bandwidth of {cut.chip.name} is not known; give it.")
        begin = max(now, self.links.get(replica.number, 0.0))
        self.links[replica.number] = begin + size / rate
        self.moved += size
        self._push(begin + size / rate + self.fleet.link_latency_s, "moved", job)

    def _moved(self, job: Job, now: float) -> None:
        pool = self._pool("decode")
        ready = [each for each in pool if not each.draining] or pool
        self._send(min(ready, key=lambda each: (each.load((), 0, False), each.number)), job, now)

    def _plan(self, now: float) -> None:
        fleet, current = self.fleet, self._count()
        assert fleet.planner is not None, "only a fleet with a planner has planning events"
        prefill = self._pool("prefill")
        decode = self._pool("decode" if fleet.disaggregated else "both")
        metrics = self.seen.metrics(fleet.every_s, prefill, decode)
        held = Replicas(current.prefill + self.starting["prefill"], current.decode + self.starting["decode"])
        budget = fleet.budget or max(fleet.replicas.total, held.total)
        wanted = fleet.planner(PoolState(now, held, budget), metrics)
        if wanted.total > budget:
            raise FleetError(f"The planner asked for {wanted.total} replicas; its budget is {budget}.")
        for pool, have, want, members in (
            ("prefill", held.prefill, wanted.prefill, prefill),
            ("decode", held.decode, wanted.decode, decode),
        ):
            for _ in range(want - have):
                self.starting[pool] += 1
                self._push(now + fleet.start_s, "ready", pool)
            ready = sorted(
                (each for each in members if not each.draining), key=lambda each: (each.load((), 0, False), each.number)
            )
            for replica in ready[: min(have - want, len(ready) - 1)] if want < have else []:
                replica.draining = True
                if replica.idle:
                    replica.gone_s = now
        if self._count() != self.timeline[-1][1]:
            self.timeline.append((now, self._count()))
        self._push(now + fleet.every_s, "plan", None)

    def _served(self, now: float) -> Served:
        joules: float | None = 0.0
        replica_s, itl = 0.0, []
        spent: dict[str, list[float]] = {}
        for each in self.replicas:
            there = (now if math.isnan(each.gone_s) else each.gone_s) - each.born_s
            replica_s += there
            itl += each.itl
            spent.setdefault(each.role, []).append(each.busy_s / there if there > 0 else 0.0)
            known = each.clock.deployment.chip.power_w is not None
            joules = (
                None
                if joules is None or not known
                else (joules + each.joules + each.clock.idle_w * max(there - each.busy_s, 0.0))
            )
        done = [job for job in self.jobs if not math.isnan(job.finish_s)]
        busy = {role: float(np.mean(shares)) for role, shares in spent.items()}
        return Served(self.fleet, done, self.rejected, itl, joules, now, replica_s, self.timeline, self.moved, busy)


class _Window:
    """What a planner is told of, since it was last asked."""

    def __init__(self) -> None:
        self.busy: dict[int, float] = {}
        self._clear()

    def _clear(self) -> None:
        self.requests = self.prompts = self.outputs = 0
        self.ttft: list[float] = []
        self.tpot: list[float] = []

    def arrived(self, job: Job) -> None:
        self.requests += 1
        self.prompts += job.request.prompt_tokens

    def finished(self, job: Job) -> None:
        self.outputs += job.request.output_tokens
        self.ttft.append(job.first_s - job.request.arrival_s)
        if job.request.output_tokens > 1:
            self.tpot.append((job.finish_s - job.first_s) / (job.request.output_tokens - 1))

    def metrics(self, window_s: float, prefill: list[Replica], decode: list[Replica]) -> PoolMetrics:
        def busy(pool: list[Replica]) -> float:
            spent = sum(each.busy_s - self.busy.get(each.number, 0.0) for each in pool)
            return spent / (window_s * len(pool)) if pool else 0.0

        held = sum(each.used + sum(job.held for job in each.waiting) for each in decode)
        made = PoolMetrics(
            window_s, self.requests, self.prompts, self.outputs,
            sum(len(each.waiting) for each in prefill), sum(len(each.waiting) for each in decode),
            busy(prefill), busy(decode), held / max(sum(each.capacity for each in decode), 1),
            float(np.quantile(self.ttft, 0.9)) if self.ttft else None,
            float(np.quantile(self.tpot, 0.9)) if self.tpot else None,
        )  # fmt: skip
        self.busy |= {each.number: each.busy_s for each in (*prefill, *decode)}
        self._clear()
        return made
