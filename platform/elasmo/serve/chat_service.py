"""Chats, completions and embeddings from request bytes to an answer: the OpenAI API over the pools, nothing of Ray."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from elasmo.config import ServeConfig
from elasmo.model.encoded import Encoded
from elasmo.model.imported_processor import AnyProcessor
from elasmo.serve.admission import Admission, Place
from elasmo.serve.arrival import Arrival
from elasmo.serve.callers import Callers
from elasmo.serve.choice import Piece, merge, pieces
from elasmo.serve.completion import Completion
from elasmo.serve.deadline import Deadline, DeadlineExceeded
from elasmo.serve.generation import Attempts, Pools, generate
from elasmo.serve.openai_errors import ApiError, defect, invalid_request, timed_out, unavailable, unknown_model
from elasmo.serve.openai_protocol import ChatRequest
from elasmo.serve.parse import parse_request
from elasmo.serve.prompting import Asked, Prompting
from elasmo.serve.request_record import RequestRecord
from elasmo.serve.sampling_protocol import SamplingFields
from elasmo.serve.served_model import ServedModel
from elasmo.serve.text_protocol import DetokenizeRequest, EmbeddingRequest, TextRequest, TokenizeRequest
from elasmo.serve.tokens import ReplicaFailed, RequestRefused

_LARGE_BODY = 1 << 16

Request = TypeVar("Request", ChatRequest, TextRequest, EmbeddingRequest, TokenizeRequest, DetokenizeRequest)


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
        self.admission = Admission(config.max_queue, config.running_limit, config.kv_mb << 20)
        self.callers = Callers(config.keys)
        self._prompting = Prompting(model, processor, config)
        self._processor = processor
        self._before = processor.tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        self._config = config
        self._pools = pools
        self._on_end = on_end

    async def chat(self, body: bytes, arrival: Arrival) -> dict[str, Any] | Completion:
        """The finished answer, or, where the request streams, one whose first token is there; the caller closes it.

        Raises:
            ApiError: with the status to answer.
        """
        return await self._answer(body, arrival, ChatRequest, 1, self._prompting.chat)

    async def text(self, body: bytes, arrival: Arrival) -> dict[str, Any] | Completion:
        """The same for completions of bare prompts."""
        return await self._answer(body, arrival, TextRequest, None, self._prompting.text)

    async def embed(self, body: bytes, arrival: Arrival) -> dict[str, Any]:
        """Embeddings of texts, in their order; raises as `chat` does."""
        record, deadline = RequestRecord(arrival.began), arrival.deadline
        with ExitStack() as held:
            held.callback(self._end, record)
            try:
                request = await self._parse(body, EmbeddingRequest)
                place = self.admission.enter(arrival.caller, len(request.input))
                held.callback(self.admission.leave, place)
                prompts = await deadline.within(self._prompting.texts(request.input, "input"), "its texts to be read")
                record.prompt_tokens = sum(len(prompt.tokens) for prompt in prompts)
                self._spend(0, arrival, record, place, held)
                await self.admission.turn(place, sum(prompt.nbytes for prompt in prompts), deadline)
                vectors = await asyncio.gather(*(self._embed(prompt, deadline) for prompt in prompts))
            except BaseException as error:
                raise self._told(error, record) or error from None
        data = [
            {"object": "embedding", "index": index, "embedding": _vector(vector, request.encoding_format)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": record.prompt_tokens, "total_tokens": record.prompt_tokens}
        return {"object": "list", "data": data, "model": self.model.name, "usage": usage}

    async def tokenize(self, body: bytes) -> dict[str, Any]:
        """Token ids of a text, or of a conversation with its template and its media's placeholders."""
        request = await self._parse(body, TokenizeRequest)
        if request.messages is not None:
            prompt = await self._prompting.encode_chat(request.messages, request.add_generation_prompt)
        else:
            prompt = await self._prompting.any_text(request.prompt or "")
        tokens = prompt.tokens.tolist()
        return {"count": len(tokens), "max_model_len": self.model.context, "tokens": tokens}

    async def detokenize(self, body: bytes) -> dict[str, Any]:
        """Text of token ids."""
        request = await self._parse(body, DetokenizeRequest)
        return {"prompt": self._prompting.decode(request.tokens, "tokens")}

    async def _answer(
        self,
        body: bytes,
        arrival: Arrival,
        kind: type[Request],
        prompts: int | None,
        read: Callable[[Request], Awaitable[Asked]],
    ) -> dict[str, Any] | Completion:
        record, deadline = RequestRecord(arrival.began), arrival.deadline
        held = ExitStack()
        held.callback(self._end, record)
        completion: Completion | None = None
        try:
            request = await self._parse(body, kind)
            assert isinstance(request, SamplingFields)
            record.choices = request.n * (prompts or len(getattr(request, "prompt", ())))
            place = self.admission.enter(arrival.caller, record.choices)
            held.callback(self.admission.leave, place)
            asked = await deadline.within(read(request), "its media to be decoded")
            record.prompt_tokens = sum(len(prompt.tokens) for prompt in asked.prompts)
            self._spend(sum(params.max_tokens for _, params in asked.choices), arrival, record, place, held)
            await self.admission.turn(place, self._store_bytes(asked), deadline)
            completion = self._start(asked, request, deadline, record, held)
            if request.stream:
                await completion.first()
                return completion
            whole = await completion.whole()
        except BaseException as error:
            answer = self._told(error, record)
            if completion is not None:
                await completion.close()
            held.close()
            raise answer or error from None
        await completion.close()
        return whole

    def _start(
        self, asked: Asked, request: SamplingFields, deadline: Deadline, record: RequestRecord, held: ExitStack
    ) -> Completion:
        """Sets up the choices; nothing runs on the pools before the first piece is asked for."""
        attempts = [Attempts() for _ in asked.choices]
        streams = []
        for index, ((number, params), tries) in enumerate(zip(asked.choices, attempts, strict=True)):
            batches = generate(self._pools, asked.prompts[number], params, deadline, self._config.retries, tries)
            told = pieces(index, batches, self._processor.decode, request.stop, self._before)
            streams.append(_only_prompt(told) if asked.only_prompt else told)
        stream = merge(streams)
        return Completion(
            self.model, asked.voice, request.with_usage, request.n, record, attempts, stream, held, self._api_error
        )

    def _store_bytes(self, asked: Asked) -> int:
        """What a request owns in the object store at most: KV of each choice, and its prompt on the way to prefill."""
        prompts = (asked.prompts[number] for number, _ in asked.choices)
        return sum(len(prompt.tokens) * self.model.kv_token_bytes + prompt.nbytes for prompt in prompts)

    def _spend(
        self, completion_tokens: int, arrival: Arrival, record: RequestRecord, place: Place, held: ExitStack
    ) -> None:
        """Counts the most tokens a request can come to against its key, and returns the rest at its end."""
        most = record.prompt_tokens + completion_tokens
        arrival.caller.spend_tokens(most)

        def settle() -> None:
            used = record.prompt_tokens + record.completion_tokens if place.running else 0
            arrival.caller.give_back_tokens(most - used)

        held.callback(settle)

    async def _embed(self, prompt: Encoded, deadline: Deadline) -> np.ndarray:
        for failures in range(self._config.retries + 1):
            try:
                return await self._pools.embed(prompt, deadline)
            except ReplicaFailed as error:
                reason = str(error)
                await deadline.within(asyncio.sleep(min(0.05 * 2**failures, 1.0)), f"a replacement replica ({reason})")
        raise unavailable(self._config.retries + 1, reason)

    async def _parse(self, body: bytes, kind: type[Request]) -> Request:
        # A large body takes long enough to be noticed by every stream of this event loop.
        large = len(body) > _LARGE_BODY
        request = await asyncio.to_thread(parse_request, body, kind) if large else parse_request(body, kind)
        if request.model != self.model.name:
            raise unknown_model(request.model, self.model.name)
        return request

    def _told(self, error: BaseException, record: RequestRecord) -> ApiError | None:
        """The answer to an error, noted in the record; None when the client went away."""
        answer = self._api_error(error) if isinstance(error, Exception) else None
        record.status = answer.status if answer is not None else 499
        return answer

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


async def _only_prompt(stream: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    """What comes with the prompt, without the token that the engine has to generate."""
    async with aclosing(stream):
        async for piece in stream:
            yield replace(piece, text="", tokens=0, finish="length", logprobs=())
            return


def _vector(vector: np.ndarray, encoding: str) -> list[float] | str:
    values = vector.astype("<f4")
    return base64.b64encode(values.tobytes()).decode() if encoding == "base64" else values.tolist()
