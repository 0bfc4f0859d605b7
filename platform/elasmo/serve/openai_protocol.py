"""The part of OpenAI's chat completions API that Elasmo speaks, as pydantic models, plus the `input_table` part.

A parameter Elasmo does not implement is refused by name, never ignored, unless its value asks for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MAX_CHOICES = 16
MAX_STOPS = 4

# Known to OpenAI's clients, not implemented here: accepted only with a value that asks for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# Labels that change nothing in the answer.
IGNORED = frozenset({"metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "user"})


class Wire(BaseModel):
    """A request object: keys that are not named here are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TextPart(Wire):
    """`{"type": "text", "text": ...}`"""

    type: Literal["text"]
    text: str


class ImageUrl(Wire):
    """Where the image's bytes are; a `data:` URI."""

    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(Wire):
    """`{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}`"""

    type: Literal["image_url"]
    image_url: ImageUrl


class InputAudio(Wire):
    """A base64-encoded sound file."""

    data: str
    format: Literal["wav", "flac"]


class AudioPart(Wire):
    """`{"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}`"""

    type: Literal["input_audio"]
    input_audio: InputAudio


Cell = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | Annotated[float, Field(allow_inf_nan=False)] | str | None


class TablePart(Wire):
    """`{"type": "input_table", "record": {...}}`: one structured record, Elasmo's extension of the API."""

    type: Literal["input_table"]
    record: dict[str, Cell]


Part = Annotated[TextPart | ImagePart | AudioPart | TablePart, Field(discriminator="type")]


class ChatMessage(Wire):
    """One turn. A plain string is one text part; only users send media."""

    role: Literal["system", "developer", "user", "assistant"]
    content: list[Part] = Field(min_length=1)
    name: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _text_is_a_part(cls, content: Any) -> Any:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    @model_validator(mode="after")
    def _media_from_users_only(self) -> ChatMessage:
        for part in self.content:
            if part.type != "text" and self.role != "user":
                raise ValueError(f"a message of role {self.role!r} takes text only; send {part.type} as the user")
        return self


class StreamOptions(Wire):
    """What a stream carries besides tokens."""

    include_usage: bool = False
    include_obfuscation: bool = False


class ChatRequest(Wire):
    """A chat completion request, validated. Defaults are OpenAI's."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    temperature: Annotated[float, Field(ge=0.0, le=2.0, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default=[], max_length=MAX_STOPS)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @model_validator(mode="after")
    def _agrees(self) -> ChatRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true; leave it out")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError(
                f"max_tokens={self.max_tokens} and max_completion_tokens={self.max_completion_tokens} disagree; "
                "send one"
            )
        return self

    @property
    def completion_limit(self) -> int | None:
        """Most tokens to generate, where the request says so."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class PromptTokensDetails(BaseModel):
    """How the prompt's tokens split; media count by their placeholders."""

    cached_tokens: int = 0
    audio_tokens: int = 0


class Usage(BaseModel):
    """Token counts: the prompt with its media placeholders, and every generated token of every choice."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()


class AssistantMessage(BaseModel):
    """What the model answered."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(BaseModel):
    """One completed answer."""

    index: int
    message: AssistantMessage
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """The answer to a request that does not stream."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage


class Delta(BaseModel):
    """New text of a streamed choice; the role comes with the first one."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    """One choice's share of a chunk."""

    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = None


class ChatChunk(BaseModel):
    """One server-sent event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """One entry of /v1/models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "elasmo"
    max_model_len: int


class ModelList(BaseModel):
    """The answer of /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
