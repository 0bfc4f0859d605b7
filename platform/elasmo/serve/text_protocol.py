"""Requests over bare text: OpenAI's completions and embeddings, and the tokenizer paths of the open engines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from elasmo.serve.openai_protocol import ChatMessage
from elasmo.serve.sampling_protocol import SamplingFields, Wire

MAX_PROMPTS = 64

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Prompts = Annotated[
    list[str | Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MAX_PROMPTS)
]


def as_list(prompt: Any) -> Any:
    """One text, or the token ids of one, as a list of one."""
    one = isinstance(prompt, str) or (
        isinstance(prompt, list)
        and prompt
        and all(isinstance(item, int) and not isinstance(item, bool) for item in prompt)
    )
    return [prompt] if one else prompt


class TextRequest(SamplingFields):
    """A completion of one or more prompts, each text or token ids."""

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0)] = 16
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_is_a_list(cls, prompt: Any) -> Any:
        return as_list(prompt)

    @model_validator(mode="after")
    def _generates_or_echoes(self) -> TextRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens=0 is only allowed with echo; ask for at least 1 token")
        return self


class EmbeddingRequest(Wire):
    """Texts, or token ids, to be turned into vectors."""

    model: str
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"

    @field_validator("input", mode="before")
    @classmethod
    def _one_is_a_list(cls, prompt: Any) -> Any:
        return as_list(prompt)


class TokenizeRequest(Wire):
    """A bare text, or a conversation as the model would read it."""

    model: str
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_of_them(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt or messages must be there, and not both")
        return self


class DetokenizeRequest(Wire):
    """Token ids to be read as text."""

    model: str
    tokens: list[TokenId]
