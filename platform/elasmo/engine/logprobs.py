"""Log-probabilities of tokens under the model itself: before temperature, penalties, bias and grammar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenLogprobs:
    """One position.

    Attributes:
        logprob: of the token that came, natural logarithm.
        top: the likeliest tokens with theirs, likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprobs:
    """Of `token`, and of the `top` likeliest, from logits float32 [vocab]; of equals the lower id comes first."""
    scores = logits.astype(np.float64)
    high = scores.max()
    logprobs = scores - high - np.log(np.exp(scores - high).sum())
    if top == 0:
        return TokenLogprobs(token, float(logprobs[token]))
    top = min(top, len(logprobs))
    border = np.partition(logprobs, len(logprobs) - top)[len(logprobs) - top]
    some = np.flatnonzero(logprobs >= border)
    likeliest = some[np.argsort(-logprobs[some], kind="stable")][:top]
    return TokenLogprobs(token, float(logprobs[token]), tuple((int(at), float(logprobs[at])) for at in likeliest))
