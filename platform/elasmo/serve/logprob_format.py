"""Log-probabilities in the two shapes that OpenAI gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from elasmo.engine.logprobs import TokenLogprobs


def chat_logprobs(logprobs: Sequence[TokenLogprobs], token_bytes: Callable[[int], bytes]) -> dict[str, Any]:
    """As chat completions tell them: text and bytes of each token and of its alternatives."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = token_bytes(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(data)}

    content = [
        {**entry(read.token, read.logprob), "top_logprobs": [entry(*other) for other in read.top]} for read in logprobs
    ]
    return {"content": content, "refusal": None}


def text_logprobs(
    logprobs: Sequence[TokenLogprobs | None],
    first_token: int | None,
    offset: int,
    token_bytes: Callable[[int], bytes],
) -> tuple[dict[str, Any], int]:
    """As completions tell them: parallel lists.

    Args:
        logprobs: None for a prompt's first token.
        first_token: that token.
        offset: characters before the first of these tokens.

    Returns:
        The lists, and the characters before the token that follows.
    """
    told: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for read in logprobs:
        token = read.token if read is not None else first_token
        text = token_bytes(token).decode("utf-8", "replace") if token is not None else ""
        told["tokens"].append(text)
        told["token_logprobs"].append(_finite(read.logprob) if read is not None else None)
        # Likeliest last, which wins where two tokens have one text, such as parts of characters.
        likeliest = reversed(read.top) if read is not None else ()
        top = {token_bytes(other).decode("utf-8", "replace"): _finite(value) for other, value in likeliest}
        told["top_logprobs"].append(top if read is not None else None)
        told["text_offset"].append(offset)
        offset += len(text)
    return told, offset


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI says -9999 for what is as good as impossible."""
    return max(logprob, -9999.0)
