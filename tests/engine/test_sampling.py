"""Sampling is a function of logits, parameters and the token's index, with the probabilities it claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasmo.engine.sampling import SamplingParams, sample, uniform

LOGITS = np.log(np.array([0.5, 0.05, 0.3, 0.15], np.float32))


def naive(logits: np.ndarray, params: SamplingParams, index: int) -> int:
    """Inverse-transform sampling over the nucleus, token by token, likeliest first."""
    weights = np.exp(logits.astype(np.float64) / params.temperature)
    chances = weights / weights.sum()
    nucleus: list[int] = []
    for token in sorted(range(len(chances)), key=lambda t: -chances[t]):
        nucleus.append(token)
        if sum(chances[nucleus]) >= params.top_p:
            break
    left = uniform(params.seed, index) * sum(chances[nucleus])
    for token in nucleus:
        left -= chances[token]
        if left < 0:
            return token
    return nucleus[-1]


@settings(deadline=None)
@given(
    st.lists(st.integers(-60, 60), min_size=2, max_size=12, unique=True),
    st.sampled_from([0.3, 1.0, 2.5]),
    st.sampled_from([0.05, 0.37, 0.81, 1.0]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 4000),
)
def test_equals_the_nucleus_written_out(
    scores: list[int], temperature: float, top_p: float, seed: int, index: int
) -> None:
    logits = np.array(scores, np.float32) / 10
    params = SamplingParams(max_tokens=1, temperature=temperature, top_p=top_p, seed=seed)
    assert sample(logits, params, index) == naive(logits, params, index)


def test_tokens_come_with_their_probabilities() -> None:
    params = SamplingParams(max_tokens=1, temperature=1.0, seed=3)
    draws = np.bincount([sample(LOGITS, params, index) for index in range(4000)], minlength=4) / 4000
    assert np.abs(draws - np.exp(LOGITS)).max() < 0.03  # about four deviations


def test_temperature_sharpens_as_a_power() -> None:
    params = SamplingParams(max_tokens=1, temperature=0.5, seed=5)
    draws = np.bincount([sample(LOGITS, params, index) for index in range(4000)], minlength=4) / 4000
    squared = np.exp(LOGITS) ** 2
    assert np.abs(draws - squared / squared.sum()).max() < 0.03


def test_top_p_never_leaves_the_nucleus() -> None:
    params = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.6)
    assert {sample(LOGITS, params, index) for index in range(300)} == {0, 2}


def test_temperature_zero_takes_the_likeliest() -> None:
    assert {sample(LOGITS, SamplingParams(max_tokens=1, seed=seed), 0) for seed in range(20)} == {0}


def test_a_forbidden_token_is_never_drawn() -> None:
    logits = np.array([0.0, -np.inf, 0.0, -np.inf], np.float32)
    params = SamplingParams(max_tokens=1, temperature=3.0)
    assert {sample(logits, params, index) for index in range(200)} == {0, 2}


def test_randomness_depends_on_seed_and_index_alone() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    numbers = {uniform(seed, index) for seed in range(40) for index in range(40)}
    assert len(numbers) == 1600 and all(0.0 <= number < 1.0 for number in numbers)
    assert abs(np.mean(list(numbers)) - 0.5) < 0.03


def test_a_negative_seed_is_a_seed() -> None:
    assert uniform(-1, 0) == uniform(2**64 - 1, 0) != uniform(1, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        SamplingParams(**{"max_tokens": 1, field: value})  # type: ignore[arg-type]


def test_a_large_vocabulary_is_drawn_from_as_a_sorted_one_is() -> None:
    """Few tokens are sorted when the draw falls on one of them; ties are at the border of those few."""
    generator = np.random.default_rng(0)
    for spread in (0.0, 0.5, 4.0):
        logits = np.round(generator.normal(0, spread, 3000), 1).astype(np.float32)
        weights = np.exp(logits.astype(np.float64))
        order = np.argsort(-weights, kind="stable")
        cumulative = np.cumsum(weights[order]) / weights.sum()
        params = SamplingParams(max_tokens=1, temperature=1.0, seed=9)
        for index in range(100):
            wanted = order[np.searchsorted(cumulative, uniform(9, index), side="right")]
            assert sample(logits, params, index) == wanted


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {0, 2}),
        ({"min_p": 0.55}, {0, 2}),
        ({"min_p": 0.2}, {0, 2, 3}),
        ({"top_k": 3, "top_p": 0.6}, {0, 2}),
    ],
)
def test_truncation_leaves_the_likeliest_with_their_proportions(params: dict[str, float], kept: set[int]) -> None:
    built = SamplingParams(max_tokens=1, temperature=1.0, seed=4, **params)  # type: ignore[arg-type]
    draws = np.bincount([sample(LOGITS, built, index) for index in range(3000)], minlength=4) / 3000
    chances = np.exp(LOGITS) * [token in kept for token in range(4)]
    assert np.abs(draws - chances / chances.sum()).max() < 0.04 and set(np.flatnonzero(draws)) == kept


def test_bias_and_penalties_are_added_to_logits() -> None:
    logits = np.array([2.0, 1.5, 1.0], np.float32)

    def greedy(before: list[int], **settings: object) -> int:
        return sample(logits, SamplingParams(max_tokens=1, **settings), 0, before)  # type: ignore[arg-type]

    assert greedy([], logit_bias=((2, 1.1),)) == 2 and greedy([], logit_bias=((0, -100.0),)) == 1
    assert greedy([0], presence_penalty=0.6) == 1 and greedy([0, 0, 0], presence_penalty=0.4) == 0
    assert greedy([0], frequency_penalty=0.4) == 0 and greedy([0, 0], frequency_penalty=0.4) == 1
    assert greedy([0, 1], presence_penalty=2.0) == 2
    assert logits.tolist() == [2.0, 1.5, 1.0]


def test_what_the_grammar_forbids_never_comes() -> None:
    allowed = np.array([False, True, False, True])
    assert sample(LOGITS, SamplingParams(max_tokens=1), 0, allowed=allowed) == 3
    drawn = {sample(LOGITS, SamplingParams(1, 2.0, seed=1), index, allowed=allowed) for index in range(200)}
    assert drawn == {1, 3}
