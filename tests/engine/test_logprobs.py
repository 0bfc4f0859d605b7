"""Log-probabilities sum to one and are in order, with ties broken by id."""

from __future__ import annotations

import numpy as np
import pytest

from elasmo.engine.logprobs import token_logprobs


def test_logprobs_of_a_known_distribution() -> None:
    weights = np.array([0.1, 0.4, 0.1, 0.4])
    read = token_logprobs(np.log(weights * 7).astype(np.float32), 2, 3)
    assert read.token == 2 and read.logprob == pytest.approx(np.log(0.1), abs=1e-6)
    assert [token for token, _ in read.top] == [1, 3, 0]
    assert [value for _, value in read.top] == pytest.approx(np.log([0.4, 0.4, 0.1]), abs=1e-6)


def test_all_tokens_may_be_asked_for_and_sum_to_one() -> None:
    logits = np.random.default_rng(0).normal(0, 30, 50).astype(np.float32)
    read = token_logprobs(logits, 7, 500)
    assert sum(np.exp(value) for _, value in read.top) == pytest.approx(1.0)
    assert token_logprobs(logits, 7, 0).top == ()
