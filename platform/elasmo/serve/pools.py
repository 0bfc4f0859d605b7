"""The prefill and decode pools through Serve's handles. What is passed for KV is a reference this process owns."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import numpy as np
import ray
from numpy.typing import NDArray
from ray.serve.handle import DeploymentHandle

from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded
from elasmo.serve import ray_adapter
from elasmo.serve.deadline import Deadline
from elasmo.serve.tokens import KVLost, Problem, ReplicaFailed, TokenBatch


class ReplicaPools:
    """Implements `elasmo.serve.generation.Pools` for an ingress replica."""

    def __init__(self, prefill: DeploymentHandle, decode: DeploymentHandle) -> None:
        self._prefill = ray_adapter.method_of(prefill, "prefill", stream=False)
        self._embed = ray_adapter.method_of(prefill, "embed", stream=False)
        self._decode = ray_adapter.method_of(decode, "decode", stream=True)

    async def prefill(self, prompt: Encoded, params: SamplingParams, deadline: Deadline) -> ray.ObjectRef:
        """A reference to the prompt's KV; it is freed when the last copy of the reference is dropped."""
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
        items = ray_adapter.stream_items(
            self._decode, deadline, "the next token", [kv], params, sent, deadline.remaining_s()
        )
        try:
            async for item in items:
                if isinstance(item, Problem):
                    raise item.exception()
                yield item
        finally:
            await items.aclose()
