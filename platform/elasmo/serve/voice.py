"""How an answer is told: as a chat or as a continued text, in pieces or whole."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Protocol, cast

from elasmo.engine.logprobs import TokenLogprobs
from elasmo.serve.choice import Piece
from elasmo.serve.logprob_format import chat_logprobs, text_logprobs
from elasmo.serve.tool_calls import CallReader, joined


class Voice(Protocol):
    """Formats the choices of one answer.

    Attributes:
        prefix: of the answer's id.
        whole, chunk: OpenAI's names of the documents.
    """

    prefix: str
    whole: str
    chunk: str

    def tell(self, piece: Piece) -> dict[str, Any]:
        """A piece as a choice of a streamed chunk; also kept for `choices`."""
        ...

    def choices(self) -> list[dict[str, Any]]:
        """All that was told, whole."""
        ...


class ChatVoice:
    """Chat completions.

    Args:
        token_bytes: what a token stands for.
        logprobs: whether the request asked for them.
        tools: whether an answer may be a call.
    """

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, token_bytes: Callable[[int], bytes], logprobs: bool = False, tools: bool = False) -> None:
        self._token_bytes = token_bytes
        self._logprobs = logprobs
        self._tools = tools
        self._readers: dict[int, CallReader] = {}
        self._told: dict[int, dict[str, Any]] = {}

    def tell(self, piece: Piece) -> dict[str, Any]:
        opens = piece.choice not in self._told
        told = self._told.setdefault(piece.choice, {"text": "", "calls": [], "logprobs": [], "finish": None})
        text, finish = piece.text, cast(str | None, piece.finish)
        calls: list[dict[str, Any]] = []
        if self._tools:
            if piece.choice not in self._readers:
                self._readers[piece.choice] = CallReader(f"call_{secrets.token_hex(12)}")
            reader = self._readers[piece.choice]
            text, calls = reader.push(text, piece.finish is not None)
            if finish == "stop" and reader.called:
                finish = "tool_calls"
        told["text"] += text
        told["calls"] += calls
        told["logprobs"] += piece.logprobs
        told["finish"] = finish
        delta: dict[str, Any] = {"role": "assistant"} if opens else {}
        if text or (opens and not calls):
            delta["content"] = text
        if calls:
            delta["tool_calls"] = calls
        return {
            "index": piece.choice,
            "delta": delta,
            "logprobs": chat_logprobs(piece.logprobs, self._token_bytes) if self._logprobs else None,
            "finish_reason": finish,
        }

    def choices(self) -> list[dict[str, Any]]:
        return [self._choice(index, self._told[index]) for index in sorted(self._told)]

    def _choice(self, index: int, told: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": told["text"], "refusal": None}
        if told["calls"]:
            message = {**message, "content": None, "tool_calls": joined(told["calls"])}
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(told["logprobs"], self._token_bytes) if self._logprobs else None,
            "finish_reason": told["finish"],
        }


class TextVoice:
    """Completions of bare prompts.

    Args:
        token_bytes: what a token stands for.
        logprobs: whether the request asked for them.
        prompts: of each choice, text to tell before the answer and its first token; None without echo.
    """

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        logprobs: bool = False,
        prompts: list[tuple[str, int]] | None = None,
    ) -> None:
        self._token_bytes = token_bytes
        self._logprobs = logprobs
        self._prompts = prompts
        self._offsets: dict[int, int] = {}
        self._told: dict[int, dict[str, Any]] = {}

    def tell(self, piece: Piece) -> dict[str, Any]:
        index, text, first = piece.choice, piece.text, None
        logprobs: list[TokenLogprobs | None] = list(piece.logprobs)
        if index not in self._told and self._prompts is not None:
            prompt, first = self._prompts[index]
            text = prompt + text
            logprobs = [*(piece.prompt_logprobs or ()), *logprobs]
        told: dict[str, Any] = {"text": text, "index": index, "logprobs": None, "finish_reason": piece.finish}
        if self._logprobs:
            told["logprobs"], self._offsets[index] = text_logprobs(
                logprobs, first, self._offsets.get(index, 0), self._token_bytes
            )
        whole = self._told.setdefault(index, {**told, "text": "", "logprobs": None})
        whole["text"] += text
        whole["finish_reason"] = piece.finish
        if self._logprobs:
            before = whole["logprobs"] or {name: [] for name in told["logprobs"]}
            whole["logprobs"] = {name: before[name] + values for name, values in told["logprobs"].items()}
        return told

    def choices(self) -> list[dict[str, Any]]:
        return [self._told[index] for index in sorted(self._told)]
