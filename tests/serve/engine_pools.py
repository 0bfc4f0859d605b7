"""Prefill and decode in this process: the real engine behind the interface that the ingress uses, without Ray."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np
from numpy.typing import NDArray

from elasmo.config import EngineConfig
from elasmo.engine.grammar import GrammarCompiler
from elasmo.engine.kv import KVCachePayload
from elasmo.engine.sampling import SamplingParams
from elasmo.engine.torch_engine import TorchEngine
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.processor import Processor
from elasmo.serve.deadline import Deadline
from elasmo.serve.route import Route
from elasmo.serve.tokens import ReplicaFailed, TokenBatch


class EnginePools:
    """One engine as both pools, stepped by whichever stream is read.

    Attributes:
        die_after: decode calls end with ReplicaFailed after so many tokens, one call an entry.
        hang: decode calls never send a token.
        where: prompts are run.
    """

    def __init__(self, model: MultimodalDecoder, processor: Processor, config: EngineConfig | None = None) -> None:
        grammars = GrammarCompiler(processor.tokenizer.to_str(), processor.vocab_size, model.config.tokens.end)
        self.engine = TorchEngine(model, processor.fingerprint(), "model", config or EngineConfig(), grammars)
        self.die_after: list[int] = []
        self.hang = False
        self.where: Route = "split"
        self._tokens: dict[str, list[TokenBatch]] = {}

    def route(self, prompt: Encoded) -> Route:
        return self.where

    async def prefill(self, prompt: Encoded, params: SamplingParams, deadline: Deadline) -> KVCachePayload:
        return self.engine.prefill(prompt, params)

    async def embed(self, prompt: Encoded, deadline: Deadline) -> NDArray[np.float32]:
        return self.engine.embed(prompt)

    async def decode(
        self, kv: KVCachePayload, params: SamplingParams, sent: tuple[int, ...], deadline: Deadline
    ) -> AsyncGenerator[TokenBatch, None]:
        request_id = uuid.uuid4().hex
        self.engine.admit(request_id, kv, params, sent)
        del kv
        async with aclosing(self._told(request_id, deadline)) as batches:
            async for batch in batches:
                yield batch

    async def local(
        self, prompt: Encoded, params: SamplingParams, sent: tuple[int, ...], deadline: Deadline
    ) -> AsyncGenerator[TokenBatch, None]:
        request_id = uuid.uuid4().hex
        self.engine.add(request_id, prompt, params, sent)
        async with aclosing(self._told(request_id, deadline)) as batches:
            async for batch in batches:
                yield batch

    async def _told(self, request_id: str, deadline: Deadline) -> AsyncGenerator[TokenBatch, None]:
        budget = self.die_after.pop(0) if self.die_after else None
        self._tokens[request_id] = []
        try:
            while True:
                if self.hang:
                    await deadline.within(asyncio.sleep(60), "the next token")
                await asyncio.sleep(0)
                if budget == 0:
                    raise ReplicaFailed("the decode replica died")
                if not self._tokens[request_id]:
                    self._step()
                    continue
                batch = self._tokens[request_id].pop(0)
                budget = None if budget is None else budget - 1
                yield batch
                if batch.finish is not None:
                    return
        finally:
            del self._tokens[request_id]
            self.engine.abort(request_id)

    def _step(self) -> None:
        for output in self.engine.step():
            logprobs = () if output.logprobs is None else (output.logprobs,)
            prompt, cached = output.prompt_logprobs, output.cached_tokens
            batch = TokenBatch(output.index, (output.token,), output.finish, 0, logprobs, prompt, cached)
            self._tokens[output.request_id].append(batch)
