"""The prefill and decode pools through Serve's handles. What is passed for KV is a reference this process owns."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.serve.handle import DeploymentHandle

from elasmo.config import ServeConfig
from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded
from elasmo.serve import ray_adapter
from elasmo.serve.deadline import Deadline
from elasmo.serve.pool_loads import PoolLoads
from elasmo.serve.route import Route
from elasmo.serve.tokens import KVLost, Problem, ReplicaFailed, TokenBatch


class ReplicaPools:
    """Implements `elasmo.serve.generation.Pools` for an ingress replica.

    Args:
        prefill, decode: handles of the deployments.
        config: decides where prompts run; the defaults, which split every one, when None.
    """

    def __init__(self, prefill: DeploymentHandle, decode: DeploymentHandle, config: ServeConfig | None = None) -> None:
        self._loads = PoolLoads(config or ServeConfig())
        self._prefill = ray_adapter.method_of(prefill, "prefill", stream=False)
        self._embed = ray_adapter.method_of(prefill, "embed", stream=False)
        self._decode = ray_adapter.method_of(decode, "decode", stream=True)
        self._local = ray_adapter.method_of(decode, "local", stream=True)

    def route(self, prompt: Encoded) -> Route:
        """Where the prompt is to run, by what this ingress has on the pools."""
        return self._loads.route(prompt)

    async def prefill(self, prompt: Encoded, params: SamplingParams, deadline: Deadline) -> ray.ObjectRef:
        """A reference to the prompt's KV; it is freed when the last copy of the reference is dropped."""
        with self._loads.prefilling(prompt):
            return await ray_adapter.call_by_reference(
                self._prefill, deadline, "prefill", prompt, params, deadline.remaining_s()
            )

    async def embed(self, prompt: Encoded, deadline: Deadline) -> NDArray[np.float32]:
        """The prompt's embedding, from whichever prefill replica Serve picks."""
        ref = await ray_adapter.call_by_reference(
            self._embed, deadline, "the embedding", prompt, deadline.remaining_s()
        )
        try:
            vector: NDArray[np.float32] | Problem = await ray_adapter.read(ref, deadline)
        except KVLost as error:
            raise ReplicaFailed(str(error)) from error
        if isinstance(vector, Problem):
            raise vector.exception()
        return vector

    async def decode(
        self, kv: ray.ObjectRef, params: SamplingParams, sent: tuple[int, ...], deadline: Deadline
    ) -> AsyncGenerator[TokenBatch, None]:
        """Token batches after `sent`, from whichever decode replica Serve picks."""
        # Inside a list, or Serve would resolve the reference on the way and hand the replica a value.
        with self._loads.decoding():
            async with aclosing(_tokens(self._decode, [kv], params, sent, deadline)) as batches:
                async for batch in batches:
                    yield batch

    async def local(
        self, prompt: Encoded, params: SamplingParams, sent: tuple[int, ...], deadline: Deadline
    ) -> AsyncGenerator[TokenBatch, None]:
        """Token batches after `sent` from a decode replica that computes the prompt too."""
        with self._loads.decoding(prompt):
            async with aclosing(_tokens(self._local, prompt, params, sent, deadline)) as batches:
                async for batch in batches:
                    yield batch


async def _tokens(
    method: DeploymentHandle, source: Any, params: SamplingParams, sent: tuple[int, ...], deadline: Deadline
) -> AsyncGenerator[TokenBatch, None]:
    items = ray_adapter.stream_items(method, deadline, "the next token", source, params, sent, deadline.remaining_s())
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Problem):
                raise item.exception()
            yield item
