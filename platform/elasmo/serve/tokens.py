"""What travels between the ingress and the decode pool, and the ways a replica can fail a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elasmo.engine.logprobs import TokenLogprobs

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class TokenBatch:
    """Tokens of one sequence that were ready together.

    Attributes:
        start: index of the first one in the sequence's generated tokens.
        tokens: token ids.
        finish: why the sequence ended with the last token, or None while it goes on.
        kv_bytes: bytes of KV this replica took over, in the first batch of an admission; else 0.
        logprobs: one a token, where the request asked for them.
        prompt_logprobs: with token 0, where the request asked for them.
        cached_tokens: with token 0, how many of the prompt's a prefix cache held.
    """

    start: int
    tokens: tuple[int, ...]
    finish: Finish | None = None
    kv_bytes: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    cached_tokens: int = 0


@dataclass(frozen=True)
class Problem:
    """A failure a replica foresaw, sent as a value: raised in a replica, Serve would log it as a defect of the server.

    Attributes:
        kind: which exception it becomes in the ingress.
        message: a clause that completes "because ...".
    """

    kind: Literal["replica failed", "kv lost", "refused"]
    message: str

    def exception(self) -> ReplicaFailed | KVLost | RequestRefused:
        """The exception for the ingress to raise."""
        if self.kind == "refused":
            return RequestRefused(self.message)
        return KVLost(self.message) if self.kind == "kv lost" else ReplicaFailed(self.message)


class ReplicaFailed(Exception):
    """A replica died, or its engine failed, while it had the request: another one can take over with the same KV."""


class KVLost(Exception):
    """The KV cannot be read any more, or was never made: the prompt has to be prefilled again."""


class RequestRefused(Exception):
    """The replica will never run this request, wherever it is sent; the message says why."""
