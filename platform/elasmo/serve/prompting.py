"""From a validated request to what the engine gets (prompts, parameters, grammar) and how the answer is told."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from elasmo.config import ServeConfig
from elasmo.engine.grammar import GrammarCompiler, GrammarError, GrammarSpec
from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded
from elasmo.model.imported_processor import AnyProcessor
from elasmo.model.media import MediaError
from elasmo.model.processor import ProcessorError
from elasmo.serve.media_parts import to_messages
from elasmo.serve.openai_errors import invalid_request, too_large
from elasmo.serve.openai_protocol import AudioPart, ChatMessage, ChatRequest, ImagePart, Part, TablePart, TextPart
from elasmo.serve.sampling_protocol import SamplingFields
from elasmo.serve.served_model import ServedModel
from elasmo.serve.text_protocol import TextRequest
from elasmo.serve.tool_calls import answer_grammar, describe_tools, spoken
from elasmo.serve.voice import ChatVoice, TextVoice, Voice

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """What a request asks of the pools.

    Attributes:
        prompts: one, or several of a completion; each has `n` choices.
        choices: of all prompts, each with the number of its prompt.
        only_prompt: nothing is to be generated; the engine's one token is dropped.
    """

    prompts: tuple[Encoded, ...]
    choices: tuple[tuple[int, SamplingParams], ...]
    voice: Voice
    only_prompt: bool = False


class Prompting:
    """Reads requests for one model."""

    def __init__(self, model: ServedModel, processor: AnyProcessor, config: ServeConfig) -> None:
        self._model = model
        self._processor = processor
        self._config = config
        ends = processor.config.tokens.end
        self._grammars = GrammarCompiler(processor.tokenizer.to_str(), processor.vocab_size, ends)

    async def chat(self, request: ChatRequest) -> Asked:
        """A chat. Media are decoded off the event loop.

        Raises:
            ApiError: 400 or 413 by the field at fault.
        """
        bias = self._bias(request)
        grammar = await self._grammar(request)
        prompt = await self.encode_chat(request.messages, True, describe_tools(request))
        name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        limit = self._limit(len(prompt.tokens), request.completion_limit, name, "messages")
        top = request.top_logprobs or 0
        params = self._params(request, limit, bias, grammar, top if request.logprobs else None)
        voice = ChatVoice(self._grammars.token_bytes, request.logprobs, request.calls_tools)
        return Asked((prompt,), tuple((0, one) for one in _seeded(params, request, request.n)), voice)

    async def text(self, request: TextRequest) -> Asked:
        """A completion of bare prompts; raises as `chat` does."""
        prompts = await self.texts(request.prompt, "prompt")
        bias = self._bias(request)
        choices: list[tuple[int, SamplingParams]] = []
        for number, prompt in enumerate(prompts):
            limit = self._limit(len(prompt.tokens), max(1, request.max_tokens), "max_tokens", "prompt")
            params = self._params(request, limit, bias, None, request.logprobs)
            if request.echo:
                params = replace(params, prompt_logprobs=request.logprobs)
            choices += [(number, one) for one in _seeded(params, request, request.n)]
        echoed = None
        if request.echo:
            told = [self._processor.decode(prompt.tokens.tolist()) for prompt in prompts]
            echoed = [(told[number], int(prompts[number].tokens[0])) for number, _ in choices]
        voice = TextVoice(self._grammars.token_bytes, request.logprobs is not None, echoed)
        return Asked(prompts, tuple(choices), voice, request.max_tokens == 0)

    async def encode_chat(
        self, messages: Sequence[ChatMessage], add_generation_prompt: bool, preface: str | None = None
    ) -> Encoded:
        """The prompt of a conversation."""
        self._check_size(messages, preface or "")
        limits = self._config.limits
        # On a thread: it decodes base64 and may fetch.
        turns = await asyncio.to_thread(to_messages, messages, limits, preface, self._config.fetch)
        return await self._run(self._processor.encode_chat, turns, limits, add_generation_prompt)

    async def texts(self, prompts: Sequence[str | list[int]], param: str) -> tuple[Encoded, ...]:
        """Prompts of bare texts, in their order; raises as `encode_text` does."""
        self._check_chars(sum(len(prompt) for prompt in prompts if isinstance(prompt, str)), param)

        def encode() -> tuple[Encoded, ...]:
            return tuple(self.encode_text(prompt, f"{param}[{at}]") for at, prompt in enumerate(prompts))

        return await asyncio.to_thread(encode)

    async def any_text(self, prompt: str) -> Encoded:
        """The tokens of a text, whatever they are, as `/tokenize` shows them."""
        self._check_chars(len(prompt), "prompt")
        return await asyncio.to_thread(self._processor.encode_text, prompt)

    def encode_text(self, prompt: str | list[int], param: str) -> Encoded:
        """The prompt of a bare text, or of token ids.

        Raises:
            ApiError: 400 for an empty one and for ids beyond the vocabulary.
        """
        if isinstance(prompt, str):
            encoded = self._processor.encode_text(prompt)
        else:
            self._known(prompt, param)
            encoded = Encoded.of_tokens(np.array(prompt, np.int32), np.zeros(len(prompt), np.uint8))
        media = set(self._processor.config.tokens.media).intersection(encoded.tokens.tolist())
        if media:
            raise invalid_request(f"{param} has token {min(media)}, which holds a medium's place; use a chat.", param)
        if len(encoded.tokens) == 0:
            raise invalid_request(f"{param} has no tokens; there is nothing to go on with.", param)
        return encoded

    def decode(self, tokens: Sequence[int], param: str) -> str:
        """Text of token ids."""
        self._known(tokens, param)
        return self._processor.decode(list(tokens))

    def _known(self, tokens: Sequence[int], param: str) -> None:
        size = self._processor.vocab_size
        for token in tokens:
            if token >= size:
                raise invalid_request(f"{param} has token {token}; the vocabulary ends at {size - 1}.", param)

    def _check_size(self, messages: Sequence[ChatMessage], preface: str) -> None:
        """Refuses by count what would take long to read: pixels and seconds are limited for each medium."""
        parts = [part for message in messages for part in message.content]
        media = sum(isinstance(part, ImagePart | AudioPart) for part in parts)
        most = self._config.media_per_request
        if media > most:
            raise invalid_request(
                f"messages has {media} images and sounds; at most serve.media_per_request={most} are read.", "messages"
            )
        chars = sum(_chars(part) for part in parts) + sum(len(spoken(message)) for message in messages)
        self._check_chars(chars + len(preface), "messages")

    def _check_chars(self, chars: int, param: str) -> None:
        most = self._config.text_chars
        if chars > most:
            raise too_large(
                f"{param} has {chars} characters of text; at most serve.text_chars={most} are read: send less.", param
            )

    def _bias(self, request: SamplingFields) -> tuple[tuple[int, float], ...]:
        bias = tuple((int(token), value) for token, value in request.logit_bias.items())
        self._known([token for token, _ in bias], "logit_bias")
        return bias

    async def _grammar(self, request: ChatRequest) -> GrammarSpec | None:
        spec = answer_grammar(request)
        if spec is None:
            return None
        param = "tools" if request.calls_tools else "response_format"
        self._check_chars(len(spec.text), param)
        try:
            await asyncio.to_thread(self._grammars.check, spec)
        except GrammarError as error:
            raise invalid_request(f"{param}: {error}", param) from None
        return spec

    def _params(
        self,
        request: SamplingFields,
        max_tokens: int,
        bias: tuple[tuple[int, float], ...],
        grammar: GrammarSpec | None,
        logprobs: int | None,
    ) -> SamplingParams:
        return SamplingParams(
            max_tokens,
            request.temperature,
            request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            logit_bias=bias,
            logprobs=logprobs,
            grammar=grammar,
        )

    def _limit(self, prompt_tokens: int, asked: int | None, name: str, prompt_name: str) -> int:
        room = self._model.context - prompt_tokens
        if room < 1 or (asked is not None and asked > room):
            raise invalid_request(
                f"The prompt has {prompt_tokens} tokens and {name} is {asked or self._config.max_tokens}, but the "
                f"context of {self._model.name!r} is {self._model.context} tokens; "
                + (f"ask for at most {room}." if room >= 1 else f"shorten the {prompt_name}."),
                name if room >= 1 else prompt_name,
                "context_length_exceeded",
            )
        return asked if asked is not None else min(self._config.max_tokens, room)

    async def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        try:
            return await asyncio.to_thread(work, *arguments)
        except MediaError as error:
            raise invalid_request(str(error), "messages", "invalid_media") from None
        except ProcessorError as error:
            raise invalid_request(str(error), "messages") from None


def _chars(part: Part) -> int:
    if isinstance(part, TextPart):
        return len(part.text)
    if isinstance(part, TablePart):
        return sum(len(name) + len(str(value)) for name, value in part.record.items())
    return 0


def _seeded(params: SamplingParams, request: SamplingFields, count: int) -> list[SamplingParams]:
    """The parameters of each choice; only the seed differs.

    It is drawn here, once: a replica that takes over later must draw the same numbers.
    """
    seed = request.seed if request.seed is not None else secrets.randbits(63)
    return [replace(params, seed=(seed + index) % (1 << 63)) for index in range(count)]
