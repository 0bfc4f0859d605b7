"""Runs one completion over the prefill and decode pools, and carries it over the death of any replica.

The promise: the tokens yielded are those of an undisturbed run, each once, in order. It rests on three facts: the
caller holds the KV handle, so KV outlives the replica that made it; token i depends on (seed, i) only; a new decode
replica is told which tokens were already sent and recomputes them without sending them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded
from elasmo.serve.deadline import Deadline
from elasmo.serve.openai_errors import unavailable
from elasmo.serve.route import Route
from elasmo.serve.tokens import KVLost, ReplicaFailed, TokenBatch

Handle = TypeVar("Handle")


class Pools(Protocol[Handle]):
    """The prefill and decode pools as one completion sees them. `Handle` stands for the KV without being it."""

    def route(self, prompt: Encoded) -> Route:
        """Where the prompt is to run, now."""
        ...

    def local(
        self, prompt: Encoded, params: SamplingParams, sent: tuple[int, ...], deadline: Deadline
    ) -> AsyncGenerator[TokenBatch, None]:
        """The tokens after `sent`, prompt and all run by one decode replica; raises as `decode` does."""
        ...

    async def prefill(self, prompt: Encoded, params: SamplingParams, deadline: Deadline) -> Handle:
        """A handle to the prompt's KV, once it is made. Raises ReplicaFailed, DeadlineExceeded."""
        ...

    async def embed(self, prompt: Encoded, deadline: Deadline) -> NDArray[np.float32]:
        """The prompt's embedding, float32 [hidden]. Raises ReplicaFailed, RequestRefused, DeadlineExceeded."""
        ...

    def decode(
        self, kv: Handle, params: SamplingParams, sent: tuple[int, ...], deadline: Deadline
    ) -> AsyncGenerator[TokenBatch, None]:
        """The tokens after `sent`. Raises ReplicaFailed, KVLost, RequestRefused, DeadlineExceeded."""
        ...


@dataclass
class Attempts:
    """What it took to complete one request."""

    prefills: int = 0
    decodes: int = 0
    kv_bytes: int = 0
    local: bool = False

    @property
    def retries(self) -> int:
        """Calls beyond the one prefill and the one decode of an undisturbed run."""
        return max(0, self.prefills - 1) + max(0, self.decodes - 1)


async def generate(
    pools: Pools[Handle],
    prompt: Encoded,
    params: SamplingParams,
    deadline: Deadline,
    retries: int,
    attempts: Attempts,
    backoff_s: Callable[[int], float] = lambda failures: min(0.05 * 2**failures, 1.0),
) -> AsyncGenerator[TokenBatch, None]:
    """Token batches up to the one with a finish reason; `attempts` is filled in on the way.

    Raises:
        ApiError: 503 when the retry budget is spent.
        DeadlineExceeded: the deadline passed.
        RequestRefused: a replica will never run it.
    """
    sent: list[int] = []
    kv: Handle | None = None
    failures = 0
    attempts.local = pools.route(prompt) == "local"
    while True:
        try:
            if kv is None and not attempts.local:
                attempts.prefills += 1
                kv = await pools.prefill(prompt, params, deadline)
            attempts.decodes += 1
            tokens = (
                pools.local(prompt, params, tuple(sent), deadline)
                if kv is None
                else pools.decode(kv, params, tuple(sent), deadline)
            )
            async with aclosing(tokens) as stream:
                async for batch in stream:
                    if batch.start != len(sent):
                        raise ReplicaFailed(f"a decode replica sent token {batch.start} where {len(sent)} was due")
                    sent.extend(batch.tokens)
                    attempts.kv_bytes += batch.kv_bytes
                    yield batch
                    if batch.finish is not None:
                        return
            failure: Exception = ReplicaFailed("the decode replica ended the stream early")
        except KVLost as error:
            failure, kv = error, None
        except ReplicaFailed as error:
            failure = error
        failures += 1
        if failures > retries:
            raise unavailable(failures, str(failure)) from failure
        await deadline.within(asyncio.sleep(backoff_s(failures)), f"a replacement replica ({failure})")
