"""What travels between the ingress and the decode pool, and the ways a replica can fail a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class TokenBatch:
    """Tokens of one sequence that were ready together.

    Attributes:
        start: index of the first one in the sequence's generated tokens.
        tokens: token ids.
        finish: why the sequence ended with the last token, or None while it goes on.
        kv_bytes: bytes of KV this replica took over, in the first batch of an admission; else 0.
    """

    start: int
    tokens: tuple[int, ...]
    finish: Finish | None = None
    kv_bytes: int = 0


class ReplicaFailed(Exception):
    """A replica died, or its engine failed, while it had the request: another one can take over with the same KV."""


class KVLost(Exception):
    """The KV cannot be read any more, or was never made: the prompt has to be prefilled again."""


class RequestRefused(Exception):
    """The replica will never run this request, wherever it is sent; the message says why."""
