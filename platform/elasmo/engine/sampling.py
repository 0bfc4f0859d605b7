"""Sampling whose randomness belongs to the request: token i of a seed is the same wherever and whenever it is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen.

    Attributes:
        max_tokens: tokens to generate at most, the end token included.
        temperature: 0 takes the likeliest token.
        top_p: smallest set of likeliest tokens whose probability reaches this (Holtzman et al. 2020).
        seed: with the token's index, all the randomness there is.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be at least 1.")
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature is {self.temperature}; it must be 0 or more.")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1.")


def sample(logits: NDArray[np.float32], params: SamplingParams, index: int) -> int:
    """The token at `index` of a sequence, from logits float32 [vocab]: a function of (logits, params, index)."""
    if params.temperature == 0.0:
        return int(np.argmax(logits))
    scores = logits.astype(np.float64) / params.temperature
    weights = np.exp(scores - scores.max())
    order = np.argsort(-weights, kind="stable")
    cumulative = np.cumsum(weights[order])
    cumulative /= cumulative[-1]
    kept = int(np.searchsorted(cumulative, params.top_p, side="left")) + 1
    cut = min(kept, len(cumulative))
    draw = uniform(params.seed, index) * cumulative[cut - 1]
    return int(order[min(int(np.searchsorted(cumulative[:cut], draw, side="right")), cut - 1)])


def uniform(seed: int, index: int) -> float:
    """The random number in [0, 1) of token `index`, from a counter-based generator (Philox, Salmon et al. 2011)."""
    bits = np.random.Philox(key=np.array([seed % (1 << 64), 0], np.uint64), counter=[index, 0, 0, 0])
    return float(np.random.Generator(bits).random())
