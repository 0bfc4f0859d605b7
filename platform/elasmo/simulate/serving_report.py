"""What a served load comes to: latency distributions, goodput under an objective, throughput, power; comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from elasmo.simulate.fleet import Fleet, FleetError, Served, serve
from elasmo.simulate.load import Request
from elasmo.simulate.pool_planner import Replicas
from elasmo.simulate.serving_constants import ServingConstants


@dataclass(frozen=True)
class Objective:
    """A service-level objective: a request meets it when both its TTFT and its TPOT do."""

    ttft_s: float = 2.0
    tpot_s: float = 0.1
    attainment: float = 0.9


@dataclass(frozen=True)
class Distribution:
    """Seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class ServingReport:
    """Figures of one run.

    Attributes:
        attainment: share of all requests, rejected ones included, that met the objective. goodput: those a second.
        prefix_hits: share of prompt tokens that were in a prefix cache.
        busy: share of their time that replicas of each role were in steps.
        power_w: of the fleet, in the mean. joules_per_token: of an output token.
    """

    requests: int
    rejected: int
    preemptions: int
    duration_s: float
    accelerators: float
    ttft_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    e2e_s: Distribution
    output_tokens_s: float
    requests_s: float
    attainment: float
    goodput: float
    prefix_hits: float
    moved_gb: float
    busy: dict[str, float]
    power_w: float | None
    joules_per_token: float | None
    replicas: list[tuple[float, int, int]]

    def to_json(self) -> dict[str, object]:
        """Plain numbers."""
        return asdict(self)


def distribution(values: Sequence[float], weights: Sequence[float] | None = None) -> Distribution:
    """Mean and quantiles, each value as often as its weight; not a number without any."""
    x = np.asarray(values, float)
    w = np.ones(len(x)) if weights is None else np.asarray(weights, float)
    x, w = x[w > 0], w[w > 0]
    if len(x) == 0:
        return Distribution(math.nan, math.nan, math.nan, math.nan)
    order = np.argsort(x)
    x, w = x[order], w[order]
    reached = np.cumsum(w) / w.sum()
    p50, p90, p99 = (float(x[np.searchsorted(reached, q - 1e-12)]) for q in (0.5, 0.9, 0.99))
    return Distribution(float((x * w).sum() / w.sum()), p50, p90, p99)


def summarise(served: Served, objective: Objective) -> ServingReport:
    """The figures of a run."""
    jobs = served.jobs
    ttft = [job.first_s - job.request.arrival_s for job in jobs]
    tpot = [
        (job.finish_s - job.first_s) / (job.request.output_tokens - 1) if job.request.output_tokens > 1 else 0.0
        for job in jobs
    ]
    met = sum(a <= objective.ttft_s and b <= objective.tpot_s for a, b in zip(ttft, tpot, strict=True))
    output = sum(job.request.output_tokens for job in jobs)
    prompts = sum(job.request.prompt_tokens for job in jobs)
    span = max(served.duration_s, 1e-9)
    everyone = len(jobs) + len(served.rejected)
    mean = served.replica_s / span * served.fleet.deployment.accelerators
    values, weights = zip(*served.itl, strict=True) if served.itl else ((), ())
    return ServingReport(
        requests=everyone, rejected=len(served.rejected), preemptions=sum(job.preempted for job in jobs),
        duration_s=served.duration_s, accelerators=mean, ttft_s=distribution(ttft),
        tpot_s=distribution([b for b, job in zip(tpot, jobs, strict=True) if job.request.output_tokens > 1]),
        itl_s=distribution(values, weights),
        e2e_s=distribution([job.finish_s - job.request.arrival_s for job in jobs]),
        output_tokens_s=output / span, requests_s=len(jobs) / span, attainment=met / everyone if everyone else 0.0,
        goodput=met / span, prefix_hits=sum(job.cached for job in jobs) / max(prompts, 1),
        moved_gb=served.moved_bytes / 1e9, busy=served.busy,
        power_w=None if served.joules is None else served.joules / span,
        joules_per_token=None if served.joules is None or not output else served.joules / output,
        replicas=[(time, each.prefill, each.decode) for time, each in served.timeline],
    )  # fmt: skip


COMPARED = {
    "TPOT median": "tpot_s.p50", "TPOT p99": "tpot_s.p99", "ITL median": "itl_s.p50", "ITL p99": "itl_s.p99",
    "TTFT median": "ttft_s.p50", "TTFT p90": "ttft_s.p90", "throughput": "output_tokens_s", "goodput": "goodput",
    "J/token": "joules_per_token",
}  # fmt: skip


def _figure(report: ServingReport, path: str) -> float | None:
    found: object = report
    for name in path.split("."):
        found = getattr(found, name)
    return found if isinstance(found, float) else None


@dataclass(frozen=True)
class Comparison:
    """Co-located against the best split of the same accelerators into pools."""

    together: ServingReport
    apart: ServingReport
    split: Replicas
    tried: dict[str, float]

    @property
    def changes(self) -> dict[str, float]:
        """Of apart over together, minus 1; negative latencies are better apart."""
        found = {}
        for name, path in COMPARED.items():
            before, after = (_figure(report, path) for report in (self.together, self.apart))
            found[name] = after / before - 1 if before and after else math.nan
        return found


def compare(
    fleet: Fleet, requests: Sequence[Request], objective: Objective, constants: ServingConstants | None = None
) -> Comparison:
    """Serves the load with all replicas co-located, then with each split of as many into prefill and decode.

    The split with the most requests within the objective counts; among equals that with the lowest mean TTFT plus
    mean request's decode time. `fleet.replicas` says how many replicas there are in all.
    """
    total = fleet.replicas.total
    if total < 2:
        raise FleetError(f"replicas={total} cannot be split into prefill and decode; use two or more.")
    together = summarise(serve(replace(fleet, replicas=Replicas(0, total)), requests, constants), objective)
    tried: dict[str, ServingReport] = {}
    for prefill in range(1, total):
        split = replace(fleet, replicas=Replicas(prefill, total - prefill))
        tried[f"{prefill}+{total - prefill}"] = summarise(serve(split, requests, constants), objective)
    best = max(tried, key=lambda name: (round(tried[name].attainment, 3), -tried[name].e2e_s.mean))
    first, second = (int(part) for part in best.split("+"))
    return Comparison(
        together, tried[best], Replicas(first, second), {name: each.attainment for name, each in tried.items()}
    )


def goodput(
    fleet: Fleet, load: Callable[[float], Sequence[Request]], objective: Objective, start: float = 1.0,
    constants: ServingConstants | None = None, precision: float = 0.05,
) -> float:  # fmt: skip
    """The highest request rate at which the objective's attainment is met, to a relative precision; 0 if none is.

    `load` makes the requests of a rate. Attainment is taken to fall with the rate.
    """

    def met(rate: float) -> bool:
        return summarise(serve(fleet, load(rate), constants), objective).attainment >= objective.attainment

    low, high = 0.0, start
    while met(high):
        low, high = high, high * 2
        if high > 1e6:
            return low
    while low == 0.0 and high > 1e-3:
        if met(high / 2):
            low = high / 2
        else:
            high /= 2
    while low > 0 and high / low > 1 + precision:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if met(middle) else (low, middle)
    return low
