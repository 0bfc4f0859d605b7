"""A replica under a constant number of requests: each that ends is replaced at once, so prompts mix into decode steps.

The prompt tokens of a step are then a compound Poisson variable: requests that start, times lengths that vary. Its
distribution gives the median, the tail and the mean of the inter-token latency, not only one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from elasmo.simulate.deployment import Deployment, DeploymentError
from elasmo.simulate.serving_constants import ServingConstants
from elasmo.simulate.serving_step import Array, Batch, Work, power_w, quantiles, seconds, stall_s, work

EDGES = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0])
"""Quantiles between which steps are alike; finer where a step in a hundred has a prompt."""
DRAWS = 20_000
PROMPT_CV = 2.0
OUTPUT_CV = 0.45
"""Spread of lengths (standard deviation over mean) where a workload does not state its own."""


@dataclass(frozen=True)
class Workload:
    """Requests: prompt tokens (media included), output tokens, media each, and how much lengths vary."""

    prompt_tokens: float
    output_tokens: float
    media: float = 0.0
    prompt_cv: float = PROMPT_CV
    output_cv: float = OUTPUT_CV

    @property
    def context(self) -> float:
        """Tokens that a running sequence looks back on, in the mean over steps: longer ones run for longer."""
        return self.prompt_tokens + self.output_tokens * (1 + self.output_cv**2) / 2


@dataclass(frozen=True)
class Steps:
    """Steps of a steady state: work [bins], the share of each, and the sequences that decode in each."""

    work: Work
    weights: Array
    sequences: float


@dataclass(frozen=True)
class Steady:
    """What a steady state gives.

    Attributes:
        itl_s: inter-token latency by quantile. tpot_s: its mean.
        tokens_s: output tokens a second of the replica.
        power_w: of all its accelerators; None where their power is not known. joules: an output token.
    """

    sequences: float
    itl_s: dict[float, float]
    tpot_s: float
    tokens_s: float
    power_w: float | None
    joules: float | None


@lru_cache(maxsize=4096)
def prompt_tokens_in_steps(starts: float, mean: float, cv: float) -> tuple[float, ...]:
    """Prompt tokens in the mean step between two of EDGES, where `starts` requests start in a step."""
    if starts <= 0 or mean <= 0:
        return (0.0,) * (len(EDGES) - 1)
    draw = np.random.Generator(np.random.PCG64(20260101))
    many = draw.poisson(starts, DRAWS).astype(float)
    tokens = np.zeros(DRAWS)
    some = many > 0
    tokens[some] = draw.gamma(many[some] / cv**2, mean * cv**2) if cv > 0 else many[some] * mean
    tokens *= starts * mean / max(tokens.mean(), 1e-9)
    tokens.sort()
    cuts = (EDGES * DRAWS).astype(int)
    return tuple(float(tokens[a:b].mean()) for a, b in pairwise(cuts))


def sequences_that_fit(deployment: Deployment, workload: Workload, constants: ServingConstants) -> int:
    """Requests that run at once before the KV cache is full, in the mean.

    Raises:
        DeploymentError: not one.
    """
    room, each = deployment.cache_room(constants.cache_share), deployment.cache_bytes(workload.context)
    count = int(room / each) * deployment.dp
    if count < 1:
        raise DeploymentError(
            f"A request of {workload.context:.0f} tokens needs {each / 1e9:.2f} GB of KV cache and {room / 1e9:.2f} GB "
            "are left beside the weights; raise tp, or use a narrower format of weights or cache."
        )
    return count


def steps_of(deployment: Deployment, workload: Workload, sequences: float, routing: float = 0.6) -> Steps:
    """The steps that `sequences` running requests make."""
    starts = sequences / max(workload.output_tokens, 1.0)
    tokens = np.array(prompt_tokens_in_steps(round(starts, 6), round(workload.prompt_tokens, 3), workload.prompt_cv))
    limit = float(deployment.step_tokens)
    over = np.maximum(tokens - limit, 0.0)
    weights = np.diff(EDGES)
    tokens = np.minimum(tokens, limit)
    if over.any():  # what a step cannot take spills into the others
        room = (limit - tokens) * weights
        tokens += (limit - tokens) * min(1.0, float((over * weights).sum()) / max(float(room.sum()), 1e-9))
    seen = workload.prompt_tokens * (1 + workload.prompt_cv**2) / 2
    media = tokens / max(workload.prompt_tokens, 1.0) * workload.media
    batch = Batch(sequences, workload.context, tokens, seen, sequences, media)
    return Steps(work(deployment, batch, routing), weights, sequences)


def steady(deployment: Deployment, steps: Steps, constants: ServingConstants) -> Steady:
    """Latency, throughput and power of those steps."""
    times = seconds(steps.work, deployment, constants)
    mean = float((times * steps.weights).sum()) + stall_s(deployment, constants)
    wanted = (0.5, 0.9, 0.99)
    itl = dict(zip(wanted, map(float, quantiles(times[None], steps.weights, wanted)[:, 0]), strict=True))
    rate = steps.sequences / mean
    watts = None
    if deployment.chip.power_w is not None:
        compute = float((steps.work.compute_s * steps.weights).sum())
        memory = float((steps.work.memory_s * steps.weights).sum())
        watts = power_w(compute, memory, mean, deployment.chip, constants) * deployment.accelerators
    return Steady(steps.sequences, itl, mean, rate, watts, None if watts is None else watts / rate)


def static_batch(deployment: Deployment, requests: float, prompt: float, output: float) -> Work:
    """A batch that starts together and runs to its end: [all prompts in one step, the mean decode step]."""
    batch = Batch(
        decode=np.array([0.0, requests]), context=np.array([0.0, prompt + output / 2]),
        prefill=np.array([requests * prompt, 0.0]), seen=np.array([prompt / 2, 0.0]),
        logits=np.array([requests, requests]),
    )  # fmt: skip
    return work(deployment, batch)
