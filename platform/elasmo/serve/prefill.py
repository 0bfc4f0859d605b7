"""The prefill pool's replica: a prompt goes in, its KV comes out as the call's result, which the caller owns."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasmo.config import ServeConfig
from elasmo.engine.contract import EngineRefused
from elasmo.engine.kv import KVCachePayload
from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded
from elasmo.serve.deadline import Deadline
from elasmo.serve.load_engine import load_engine
from elasmo.serve.tokens import Problem


class Prefill:
    """Runs prompts one after another on a thread, so that the replica answers health checks meanwhile."""

    def __init__(self, published: str, config: ServeConfig) -> None:
        self._engine = load_engine(published, config.engine)
        # The first pass through torch is slow; let no client wait for it.
        self._engine.prefill(Encoded.empty(), SamplingParams(max_tokens=1))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefill")
        self._prompts = 0
        self._tokens = 0

    async def prefill(self, prompt: Encoded, params: SamplingParams, timeout_s: float) -> KVCachePayload | Problem:
        """The prompt's KV and its first token, or why the engine will never run the prompt.

        Raises:
            DeadlineExceeded: it was not its turn in time; a cancelled call that has not begun never begins.
        """
        run = asyncio.get_running_loop().run_in_executor(self._thread, self._engine.prefill, prompt, params)
        try:
            payload = await Deadline(timeout_s).within(run, "prefill")
        except EngineRefused as error:
            return Problem("refused", str(error))
        self._prompts += 1
        self._tokens += len(prompt.tokens)
        return payload

    async def embed(self, prompt: Encoded, timeout_s: float) -> NDArray[np.float32] | Problem:
        """The prompt's embedding, or why the engine will never run the prompt; raises as `prefill` does."""
        run = asyncio.get_running_loop().run_in_executor(self._thread, self._engine.embed, prompt)
        try:
            return await Deadline(timeout_s).within(run, "embedding")
        except EngineRefused as error:
            return Problem("refused", str(error))

    async def stats(self) -> dict[str, Any]:
        """Figures since this replica started."""
        stats = self._engine.stats()
        cached = {"prompt_tokens_cached": stats.prompt_tokens_cached, "cached_blocks": stats.cached_blocks}
        return {"pid": os.getpid(), "prompts": self._prompts, "tokens": self._tokens, **cached}
