"""Sampling whose randomness belongs to the request: token i of a seed is the same wherever and whenever it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasmo.engine.grammar import GrammarSpec

_SORTED_FIRST = 256
"""Most draws fall on one of so many likeliest tokens; the others are sorted when one does not."""


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen.

    Attributes:
        max_tokens: tokens to generate at most, the end token included.
        temperature: 0 takes the likeliest token.
        top_p: smallest set of likeliest tokens whose probability reaches this (Holtzman et al. 2020).
        seed: with the token's index, all the randomness there is.
        top_k: so many likeliest tokens; 0 for all.
        min_p: tokens at least this share of the likeliest one's probability (Nguyen et al. 2024).
        presence_penalty: taken off the logit of every token generated before.
        frequency_penalty: taken off the logit of a token for each time it was generated before.
        logit_bias: added to logits, by token id.
        logprobs: how many alternatives to report at each token; None to report nothing.
        prompt_logprobs: the same for the prompt's tokens.
        grammar: what the text must match.
        ignore_end: go on after an end token, as measurements of fixed length do.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: GrammarSpec | None = None
    ignore_end: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be at least 1.")
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature is {self.temperature}; it must be 0 or more.")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1.")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be 0, for all tokens, or more.")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p is {self.min_p}; it must be between 0 and 1.")


def sample(
    logits: NDArray[np.float32],
    params: SamplingParams,
    index: int,
    before: Sequence[int] = (),
    allowed: NDArray[np.bool_] | None = None,
) -> int:
    """The token at `index` of a sequence: a function of the arguments.

    Args:
        logits: float32 [vocab]; -inf where a token may not come.
        before: tokens generated before it, for the penalties.
        allowed: bool [vocab], what the grammar lets come; None for everything.
    """
    scores = adjusted(logits, params, before)
    if allowed is not None:
        scores = np.where(allowed[: len(scores)], scores, -np.inf)
    if params.temperature == 0.0:
        return int(np.argmax(scores))
    scaled = scores.astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    if params.min_p > 0.0:
        weights[weights < params.min_p] = 0.0  # the likeliest token's weight is 1
    draw = uniform(params.seed, index)
    if params.top_k == 0 and params.top_p == 1.0:
        early = _among_likeliest(weights, draw)
        if early is not None:
            return early
    order = np.argsort(-weights, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    cumulative = np.cumsum(weights[order])
    cumulative /= cumulative[-1]
    kept = int(np.searchsorted(cumulative, params.top_p, side="left")) + 1
    cut = min(kept, len(cumulative))
    at = int(np.searchsorted(cumulative[:cut], draw * cumulative[cut - 1], side="right"))
    return int(order[min(at, cut - 1)])


def adjusted(logits: NDArray[np.float32], params: SamplingParams, before: Sequence[int]) -> NDArray[np.float32]:
    """Logits with bias and penalties; the same array where there are none."""
    penal = before and (params.presence_penalty or params.frequency_penalty)
    if not penal and not params.logit_bias:
        return logits
    scores = logits.copy()
    for token, bias in params.logit_bias:
        scores[token] += bias
    if penal:
        tokens, counts = np.unique(np.asarray(before, np.int64), return_counts=True)
        scores[tokens] -= params.presence_penalty + params.frequency_penalty * counts.astype(np.float32)
    return scores


def uniform(seed: int, index: int) -> float:
    """The random number in [0, 1) of token `index`, from a counter-based generator (Philox, Salmon et al. 2011)."""
    bits = np.random.Philox(key=np.array([seed % (1 << 64), 0], np.uint64), counter=[index, 0, 0, 0])
    return float(np.random.Generator(bits).random())


def _among_likeliest(weights: NDArray[np.float64], draw: float) -> int | None:
    """The token at `draw` of the whole distribution in falling order, if it is one of the likeliest; else None."""
    if len(weights) <= 4 * _SORTED_FIRST:
        return None
    some = np.argpartition(-weights, _SORTED_FIRST)[:_SORTED_FIRST]
    # Which of several tokens at the border were taken is arbitrary; all those above it were.
    some = np.sort(some[weights[some] > weights[some].min()])
    some = some[np.argsort(-weights[some], kind="stable")]
    cumulative = np.cumsum(weights[some]) / weights.sum()
    at = int(np.searchsorted(cumulative, draw, side="right"))
    return int(some[at]) if at < len(some) else None
