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
    [("max_tokens", 0), ("temperature", -0.1), ("temperature", float("nan")), ("top_p", 0.0), ("top_p", 1.1)],
)
def test_parameters_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        SamplingParams(**{"max_tokens": 1, field: value})  # type: ignore[arg-type]
