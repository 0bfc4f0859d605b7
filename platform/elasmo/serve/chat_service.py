"""A chat completion from request bytes to an answer: the OpenAI API over the pools, with nothing of Ray in it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from elasmo.config import ServeConfig
from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded
from elasmo.model.imported_processor import AnyProcessor
from elasmo.model.media import MediaError
from elasmo.model.processor import ProcessorError
from elasmo.serve.admission import Admission
from elasmo.serve.choice import merge, pieces
from elasmo.serve.completion import Completion
from elasmo.serve.deadline import Deadline, DeadlineExceeded
from elasmo.serve.generation import Attempts, Pools, generate
from elasmo.serve.media_parts import to_messages
from elasmo.serve.openai_errors import ApiError, defect, invalid_request, timed_out, unknown_model
from elasmo.serve.openai_protocol import ChatCompletion, ChatRequest
from elasmo.serve.parse import parse_chat_request
from elasmo.serve.request_record import RequestRecord
from elasmo.serve.served_model import ServedModel
from elasmo.serve.tokens import RequestRefused


class ChatService:
    """Serves one model. Used on one event loop.

    Args:
        model: its public description.
        processor: turns messages into tokens and tokens into text.
        config: limits, defaults, deadline and retry budget.
        pools: where prefill and decode run.
        on_end: called with the record of every request when it ends.
    """

    def __init__(
        self,
        model: ServedModel,
        processor: AnyProcessor,
        config: ServeConfig,
        pools: Pools[Any],
        on_end: Callable[[RequestRecord], None],
    ) -> None:
        self.model = model
        self.admission = Admission(config.max_queue, config.kv_mb << 20)
        self._processor = processor
        self._config = config
        self._pools = pools
        self._on_end = on_end

    async def answer(self, body: bytes) -> ChatCompletion | Completion:
        """The finished completion, or, where the request streams, one whose first token is there; the caller closes it.

        Raises:
            ApiError: with the status to answer.
        """
        record = RequestRecord()
        held = ExitStack()
        held.callback(self._end, record)
        completion: Completion | None = None
        try:
            request = parse_chat_request(body)
            if request.model != self.model.name:
                raise unknown_model(request.model, self.model.name)
            record.choices = request.n
            held.enter_context(self.admission.admit(request.n))
            completion = await self._start(request, record, held)
            if request.stream:
                await completion.first()
                return completion
            whole = await completion.whole()
        except BaseException as error:
            answer = self._api_error(error) if isinstance(error, Exception) else None
            record.status = answer.status if answer is not None else 499  # cancelled: the client went away
            if completion is not None:
                await completion.close()
            held.close()
            raise answer or error from None
        await completion.close()
        return whole

    async def _start(self, request: ChatRequest, record: RequestRecord, held: ExitStack) -> Completion:
        """Encodes the prompt and sets up its choices; nothing runs on the pools before the first piece is asked for."""
        deadline = Deadline(self._config.request_timeout_s)
        prompt = await deadline.within(self._encode(request), "its media to be decoded")
        record.prompt_tokens = len(prompt.tokens)
        max_tokens = self._max_tokens(request, len(prompt.tokens))
        held.enter_context(self.admission.hold_kv(request.n * len(prompt.tokens) * self.model.kv_token_bytes))
        # Drawn here, once: a replica that takes over later must draw the same numbers.
        seed = request.seed if request.seed is not None else secrets.randbits(63)
        attempts = [Attempts() for _ in range(request.n)]
        streams = []
        for index, tries in enumerate(attempts):
            params = SamplingParams(max_tokens, request.temperature, request.top_p, (seed + index) % (1 << 63))
            batches = generate(self._pools, prompt, params, deadline, self._config.retries, tries)
            streams.append(pieces(index, batches, self._processor.decode, request.stop))
        return Completion(self.model, request, record, attempts, merge(streams), held, self._api_error)

    async def _encode(self, request: ChatRequest) -> Encoded:
        """The prompt, its media decoded off the event loop."""
        limits = self._config.limits
        messages = to_messages(request.messages, limits)
        try:
            return await asyncio.to_thread(self._processor.encode_chat, messages, limits, True)
        except MediaError as error:
            raise invalid_request(str(error), "messages", "invalid_media") from None
        except ProcessorError as error:
            raise invalid_request(str(error), "messages") from None

    def _max_tokens(self, request: ChatRequest, prompt_tokens: int) -> int:
        asked = request.completion_limit
        room = self.model.context - prompt_tokens
        if room < 1 or (asked is not None and asked > room):
            name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
            raise invalid_request(
                f"The prompt has {prompt_tokens} tokens and {name} is {asked or self._config.max_tokens}, but the "
                f"context of {self.model.name!r} is {self.model.context} tokens; "
                + (f"ask for at most {room}." if room >= 1 else "shorten the messages."),
                name if room >= 1 else "messages",
                "context_length_exceeded",
            )
        return asked if asked is not None else min(self._config.max_tokens, room)

    def _api_error(self, error: Exception) -> ApiError:
        if isinstance(error, ApiError):
            return error
        if isinstance(error, DeadlineExceeded):
            return timed_out(self._config.request_timeout_s, error.waiting_for)
        if isinstance(error, RequestRefused):
            return invalid_request(str(error), "messages")
        return defect(error)

    def _end(self, record: RequestRecord) -> None:
        record.end()
        self._on_end(record)
