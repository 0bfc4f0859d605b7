"""One choice as text: its token batches detokenised, cut at a stop string, closed with a finish reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from elasmo.engine.logprobs import TokenLogprobs
from elasmo.serve.text_stream import TextStream
from elasmo.serve.tokens import Finish, TokenBatch


@dataclass(frozen=True)
class Piece:
    """Text a choice gained.

    Attributes:
        choice: its index.
        text: may be empty, where tokens gave no whole character yet.
        tokens: generated tokens behind it, an end token included.
        finish: set on the choice's last piece.
        logprobs: of those tokens, where the request asked for them.
        prompt_logprobs: with the first piece, where the request asked for them.
        cached_tokens: with the first piece, how many of the prompt's a prefix cache held.
    """

    choice: int
    text: str
    tokens: int
    finish: Finish | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    cached_tokens: int = 0


async def pieces(
    choice: int,
    batches: AsyncGenerator[TokenBatch, None],
    decode: Callable[[Sequence[int]], str],
    stop: Sequence[str],
    before: Sequence[int] = (),
) -> AsyncGenerator[Piece, None]:
    """The choice's text as it arrives; `before` as in `TextStream`. A stop string closes `batches`, freeing pages."""
    text = TextStream(decode, stop, before)
    async with aclosing(batches):
        async for batch in batches:
            ends = batch.finish == "stop"
            fresh = text.push(batch.tokens[:-1] if ends else batch.tokens)
            logprobs, prompt, cached = batch.logprobs[: text.used], batch.prompt_logprobs, batch.cached_tokens
            if text.stopped:
                yield Piece(choice, fresh, text.used, "stop", logprobs, prompt, cached)
                return
            if batch.finish is not None:
                fresh += text.finish()
            yield Piece(choice, fresh, text.used + ends, batch.finish, logprobs, prompt, cached)
            text.used = 0


async def merge(streams: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """Pieces of all streams in the order they arrive. The first error ends all of them; so does closing this one."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for piece in stream:
                yield piece
        return
    arrived: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(stream, arrived)) for stream in streams]
    try:
        live = len(tasks)
        while live:
            item = await arrived.get()
            if item is None:
                live -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(stream: AsyncGenerator[Piece, None], arrived: asyncio.Queue[Piece | BaseException | None]) -> None:
    try:
        async with aclosing(stream):
            async for piece in stream:
                arrived.put_nowait(piece)
        arrived.put_nowait(None)
    except Exception as error:
        arrived.put_nowait(error)
