"""One completion in progress, told as a whole or as a stream of server-sent events; closing it frees what it holds."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack

from elasmo.serve.choice import Piece
from elasmo.serve.generation import Attempts
from elasmo.serve.openai_errors import ApiError
from elasmo.serve.openai_protocol import (
    AssistantMessage,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Choice,
    ChunkChoice,
    Delta,
    Usage,
)
from elasmo.serve.request_record import RequestRecord
from elasmo.serve.served_model import ServedModel
from elasmo.serve.sse import DONE, chunk_event, error_event


class Completion:
    """The answer to one admitted request.

    Args:
        model: what it is asked of.
        request: the request.
        record: filled in as pieces come.
        attempts: of each choice.
        stream: pieces of all choices; it is this object's to close.
        held: what is released at the end, such as the places in the queue.
        to_api_error: turns an exception of `stream` into the answer.
    """

    def __init__(
        self,
        model: ServedModel,
        request: ChatRequest,
        record: RequestRecord,
        attempts: Sequence[Attempts],
        stream: AsyncGenerator[Piece, None],
        held: ExitStack,
        to_api_error: Callable[[Exception], ApiError],
    ) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self._model = model
        self._request = request
        self._record = record
        self._attempts = attempts
        self._stream = stream
        self._held = held
        self._to_api_error = to_api_error
        self._created = int(time.time())
        self._first: Piece | None = None
        self._complete = False

    async def first(self) -> None:
        """Waits for the first piece, so that what fails before it can still be answered with its own status."""
        self._first = await anext(self._stream)
        self._record.first_token()

    async def whole(self) -> ChatCompletion:
        """All choices, finished."""
        texts = [""] * self._request.n
        choices: dict[int, Choice] = {}
        async for piece in self._pieces():
            texts[piece.choice] += piece.text
            if piece.finish is not None:
                message = AssistantMessage(content=texts[piece.choice])
                choices[piece.choice] = Choice(index=piece.choice, message=message, finish_reason=piece.finish)
        return ChatCompletion(
            id=self.id,
            created=self._created,
            model=self._model.name,
            system_fingerprint=self._model.fingerprint,
            choices=[choices[index] for index in sorted(choices)],
            usage=self._usage(),
        )

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, one a piece; an error ends them with an event of its own and no `[DONE]`."""
        options = self._request.stream_options
        with_usage = options is not None and options.include_usage
        opened: set[int] = set()
        try:
            async for piece in self._pieces():
                role = None if piece.choice in opened else "assistant"
                opened.add(piece.choice)
                delta = Delta(role=role, content=piece.text if piece.text or role else None)
                choice = ChunkChoice(index=piece.choice, delta=delta, finish_reason=piece.finish)
                yield chunk_event(self._chunk([choice], None), with_usage)
            if with_usage:
                yield chunk_event(self._chunk([], self._usage()), with_usage)
            yield DONE
        except Exception as error:
            answer = self._to_api_error(error)
            self._record.status = answer.status
            yield error_event(answer)

    async def close(self) -> None:
        """Stops what still runs and releases what is held. May be called twice."""
        try:
            await self._stream.aclose()
        finally:
            self._record.retries = sum(attempts.retries for attempts in self._attempts)
            self._record.kv_bytes = sum(attempts.kv_bytes for attempts in self._attempts)
            if not self._complete and self._record.status == 200:
                self._record.status = 499
            self._held.close()

    async def _pieces(self) -> AsyncGenerator[Piece, None]:
        if self._first is None:
            await self.first()
        piece = self._first
        while piece is not None:
            self._record.completion_tokens += piece.tokens
            yield piece
            piece = await anext(self._stream, None)
        self._complete = True

    def _usage(self) -> Usage:
        prompt, completion = self._record.prompt_tokens, self._record.completion_tokens
        return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None) -> ChatChunk:
        return ChatChunk(
            id=self.id,
            created=self._created,
            model=self._model.name,
            system_fingerprint=self._model.fingerprint,
            choices=choices,
            usage=usage,
        )
