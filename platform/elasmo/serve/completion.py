"""One completion in progress, told as a whole or as a stream of server-sent events; closing it frees what it holds."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack
from typing import Any

from elasmo.serve.choice import Piece
from elasmo.serve.generation import Attempts
from elasmo.serve.openai_errors import ApiError
from elasmo.serve.request_record import RequestRecord
from elasmo.serve.served_model import ServedModel
from elasmo.serve.voice import Voice


class Completion:
    """The answer to one admitted request.

    Args:
        model: what it is asked of.
        voice: how it is told.
        with_usage: whether a stream ends with the token counts.
        per_prompt: choices of each prompt.
        record: filled in as pieces come.
        attempts: of each choice.
        stream: pieces of all choices; it is this object's to close.
        held: what is released at the end, such as the places in the queue.
        to_api_error: turns an exception of `stream` into the answer.
    """

    def __init__(
        self,
        model: ServedModel,
        voice: Voice,
        with_usage: bool,
        per_prompt: int,
        record: RequestRecord,
        attempts: Sequence[Attempts],
        stream: AsyncGenerator[Piece, None],
        held: ExitStack,
        to_api_error: Callable[[Exception], ApiError],
    ) -> None:
        self.id = f"{voice.prefix}-{secrets.token_hex(12)}"
        self._model = model
        self._voice = voice
        self._with_usage = with_usage
        self._per_prompt = per_prompt
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

    async def whole(self) -> dict[str, Any]:
        """All choices, finished, as one JSON document."""
        async for piece in self._pieces():
            self._voice.tell(piece)
        return {**self._document(self._voice.whole, self._voice.choices()), "usage": self._usage()}

    async def documents(self) -> AsyncGenerator[dict[str, Any], None]:
        """The JSON documents of a stream, one a piece; an error is the last one, and the stream is then incomplete."""
        usage = {"usage": None} if self._with_usage else {}
        try:
            async for piece in self._pieces():
                yield {**self._document(self._voice.chunk, [self._voice.tell(piece)]), **usage}
            if self._with_usage:
                yield {**self._document(self._voice.chunk, []), "usage": self._usage()}
        except Exception as error:
            answer = self._to_api_error(error)
            self._record.status = answer.status
            yield answer.body()

    async def close(self) -> None:
        """Stops what still runs and releases what is held. May be called twice."""
        try:
            await self._stream.aclose()
        finally:
            self._record.local = sum(attempts.local for attempts in self._attempts)
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
            if piece.choice % self._per_prompt == 0:
                self._record.cached_tokens += piece.cached_tokens
            yield piece
            piece = await anext(self._stream, None)
        self._complete = True

    def _usage(self) -> dict[str, Any]:
        prompt, completion = self._record.prompt_tokens, self._record.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self._record.cached_tokens, "audio_tokens": 0},
        }

    def _document(self, name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": name,
            "created": self._created,
            "model": self._model.name,
            "system_fingerprint": self._model.fingerprint,
            "choices": choices,
        }
