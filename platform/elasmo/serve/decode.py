"""The decode pool's replica: takes over KV by reference and streams tokens, many sequences to an engine step."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import ray

from elasmo.config import ServeConfig
from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded
from elasmo.serve import ray_adapter
from elasmo.serve.deadline import Deadline
from elasmo.serve.decode_loop import Admit, DecodeLoop, Event, Failed, Run
from elasmo.serve.load_engine import load_engine
from elasmo.serve.token_buffer import TokenBuffer
from elasmo.serve.tokens import KVLost, Problem, TokenBatch

_FAILED_STEPS = 3


class Decode:
    """One engine, run by a `DecodeLoop` thread; this class moves its events onto the replica's event loop."""

    def __init__(self, published: str, config: ServeConfig) -> None:
        self._coalesce_s = config.coalesce_ms / 1000
        self._buffers: dict[str, TokenBuffer] = {}
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._kv_bytes = 0
        self._local = 0
        self._loop = DecodeLoop(load_engine(published, config.engine), self._deliver)

    async def decode(
        self, kv: Sequence[ray.ObjectRef], params: SamplingParams, sent: tuple[int, ...], timeout_s: float
    ) -> AsyncGenerator[TokenBatch | Problem, None]:
        """The sequence's tokens after `sent`, or, as the last item, what kept it from going on.

        Closing or cancelling it frees the sequence's pages.

        Args:
            kv: one reference, in a list so that it arrives as a reference.
            params: of the request; the same on every replica that tries it.
            sent: tokens the client has; they are recomputed, not sent again.
            timeout_s: what is left of the request's deadline.

        Raises:
            DeadlineExceeded: the deadline passed.
        """
        self._event_loop = asyncio.get_running_loop()
        deadline = Deadline(timeout_s)
        request_id = uuid.uuid4().hex
        try:
            payload = await ray_adapter.read(kv[0], deadline)
            if isinstance(payload, Problem):
                yield payload
                return
        except KVLost as error:
            yield Problem("kv lost", str(error))
            return
        kv_bytes = sum(layer.nbytes for layer in payload.layers)
        self._kv_bytes += kv_bytes
        buffer = self._open(Admit(request_id, payload, params, sent), kv_bytes)
        # The engine copies the KV into its pages; a view kept here would pin the object store until the last token.
        del payload
        async with aclosing(self._told(request_id, buffer, deadline)) as items:
            async for item in items:
                yield item

    async def local(
        self, prompt: Encoded, params: SamplingParams, sent: tuple[int, ...], timeout_s: float
    ) -> AsyncGenerator[TokenBatch | Problem, None]:
        """The same for a prompt that is computed here, in pieces beside the steps of the others."""
        self._event_loop = asyncio.get_running_loop()
        self._local += 1
        request_id = uuid.uuid4().hex
        buffer = self._open(Run(request_id, prompt, params, sent), 0)
        async with aclosing(self._told(request_id, buffer, Deadline(timeout_s))) as items:
            async for item in items:
                yield item

    def _open(self, sequence: Admit | Run, kv_bytes: int) -> TokenBuffer:
        buffer = TokenBuffer(len(sequence.replay), self._coalesce_s, kv_bytes)
        self._buffers[sequence.request_id] = buffer
        self._loop.admit(sequence)
        return buffer

    async def _told(
        self, request_id: str, buffer: TokenBuffer, deadline: Deadline
    ) -> AsyncGenerator[TokenBatch | Problem, None]:
        try:
            while True:
                item = await deadline.within(buffer.take(), "the next token")
                yield item
                if isinstance(item, Problem) or item.finish is not None:
                    return
        finally:
            del self._buffers[request_id]
            self._loop.abort(request_id)

    async def stats(self) -> dict[str, Any]:
        """The engine's figures now, and what this replica took over since it started."""
        figures = {"kv_bytes": self._kv_bytes, "local": self._local, "queued": self._loop.queued}
        return {"pid": os.getpid(), **figures, **asdict(self._loop.stats)}

    async def check_health(self) -> None:
        """Called by Serve; raising has this replica replaced."""
        if not self._loop.alive:
            raise RuntimeError("the decode thread has ended")
        if self._loop.failed_steps >= _FAILED_STEPS:
            raise RuntimeError(f"{self._loop.failed_steps} decode steps failed in a row")

    def _deliver(self, events: Sequence[Event]) -> None:
        """On the decode thread: hands a step's events to the event loop, all in one wake-up."""
        assert self._event_loop is not None
        with contextlib.suppress(RuntimeError):  # the event loop closed: the replica is going away
            self._event_loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: Sequence[Event]) -> None:
        for event in events:
            buffer = self._buffers.get(event.request_id)
            if buffer is None:
                continue  # its stream is closed; the abort is under way
            if isinstance(event, Failed):
                buffer.fail(event.problem)
            else:
                buffer.push(event.token, event.finish, event.logprobs, event.prompt_logprobs, event.cached_tokens)
