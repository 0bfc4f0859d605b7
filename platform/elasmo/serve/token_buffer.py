"""Tokens of one sequence between the decode loop and its stream: the first goes at once, later ones in small groups."""

from __future__ import annotations

import asyncio

from elasmo.engine.logprobs import TokenLogprobs
from elasmo.serve.tokens import Finish, Problem, TokenBatch


class TokenBuffer:
    """Collects what the engine made since the last message. Used on one event loop.

    Args:
        start: index of the first token to come.
        coalesce_s: how long tokens after the first message wait for company; 0 sends what is there.
        kv_bytes: reported with the first message.
    """

    def __init__(self, start: int, coalesce_s: float, kv_bytes: int) -> None:
        self._next = start
        self._coalesce_s = coalesce_s
        self._kv_bytes = kv_bytes
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self._cached_tokens = 0
        self._finish: Finish | None = None
        self._problem: Problem | None = None
        self._first = True
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()

    def push(
        self,
        token: int,
        finish: Finish | None,
        logprobs: TokenLogprobs | None = None,
        prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None,
        cached_tokens: int = 0,
    ) -> None:
        """Adds the sequence's next token, and what was asked to come with it."""
        self._tokens.append(token)
        self._finish = finish
        if logprobs is not None:
            self._logprobs.append(logprobs)
        self._prompt_logprobs = prompt_logprobs or self._prompt_logprobs
        self._cached_tokens += cached_tokens
        self._ready.set()
        if finish is not None:
            self._ended.set()

    def fail(self, problem: Problem) -> None:
        """Ends the sequence early."""
        self._problem = problem
        self._ready.set()
        self._ended.set()

    async def take(self) -> TokenBatch | Problem:
        """All tokens that are ready, at least one; once none are left of a sequence that failed, its problem."""
        await self._ready.wait()
        if not self._first and self._coalesce_s and not self._ended.is_set():
            try:
                async with asyncio.timeout(self._coalesce_s):
                    await self._ended.wait()
            except TimeoutError:
                pass
        if self._problem is not None and not self._tokens:
            return self._problem
        logprobs, prompt = tuple(self._logprobs), self._prompt_logprobs
        tokens, cached = tuple(self._tokens), self._cached_tokens
        batch = TokenBatch(self._next, tokens, self._finish, self._kv_bytes, logprobs, prompt, cached)
        self._next += len(self._tokens)
        self._tokens.clear()
        self._logprobs.clear()
        self._prompt_logprobs, self._cached_tokens = None, 0
        self._kv_bytes = 0
        self._first = False
        if self._problem is None:
            self._ready.clear()
        return batch
