"""The part of OpenAI's chat completions API that Elasmo speaks, as pydantic models, plus the `input_table` part.

A parameter Elasmo does not implement is refused by name, never ignored, unless its value asks for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from elasmo.serve.sampling_protocol import SamplingFields, Wire

MAX_TOOLS = 64

# Known to OpenAI's clients, not implemented here: accepted only with a value that asks for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "dimensions": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# Labels that change nothing in the answer; one tool is called at a time.
IGNORED = frozenset({"metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "user"})


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


class FunctionCall(Wire):
    """A call of a tool that an assistant made before."""

    name: str
    arguments: str


class ToolCall(Wire):
    """One of an assistant's calls."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(Wire):
    """One turn. A plain string is one text part; only users send media; a tool's message answers a call."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: list[Part] = Field(min_length=1)
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None

    @model_validator(mode="before")
    @classmethod
    def _calls_stand_without_content(cls, message: Any) -> Any:
        if isinstance(message, dict) and message.get("tool_calls") and message.get("content") is None:
            return {**message, "content": ""}
        return message

    @field_validator("content", mode="before")
    @classmethod
    def _text_is_a_part(cls, content: Any) -> Any:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    @model_validator(mode="after")
    def _parts_fit_the_role(self) -> ChatMessage:
        for part in self.content:
            if part.type != "text" and self.role != "user":
                raise ValueError(f"a message of role {self.role!r} takes text only; send {part.type} as the user")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id belongs to messages of role 'tool', which need it")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a message of role {self.role!r} has no tool_calls; only an assistant's has")
        return self


class JsonSchema(Wire):
    """A named schema; it holds whether `strict` says so or not."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextFormat(Wire):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Wire):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class Function(Wire):
    """What a tool is called, what it is for and which arguments it takes, as a JSON schema."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] = Field(default={"type": "object", "properties": {}, "additionalProperties": False})
    strict: bool | None = None


class Tool(Wire):
    """A tool the model may call."""

    type: Literal["function"]
    function: Function


class FunctionName(Wire):
    """The name of a tool."""

    name: str


class NamedTool(Wire):
    """Demands that this tool be called."""

    type: Literal["function"]
    function: FunctionName


class ChatRequest(SamplingFields):
    """A chat completion request, validated. Defaults are OpenAI's."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None

    @model_validator(mode="after")
    def _agrees(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise ValueError(
                f"max_tokens={self.max_tokens} and max_completion_tokens={self.max_completion_tokens} disagree; "
                "send one"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is only allowed when logprobs is true; set that too")
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise ValueError(f"tools has two functions of one name; the names are {', '.join(names)}")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise ValueError(f"tool_choice names {self.tool_choice.function.name!r}, which is not among the tools")
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice is 'required', but there are no tools; send some")
        if self.calls_tools and self.response_format is not None and self.response_format.type != "text":
            raise ValueError("response_format and tools cannot both decide what is answered; leave one out")
        return self

    @property
    def completion_limit(self) -> int | None:
        """Most tokens to generate, where the request says so."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def calls_tools(self) -> bool:
        """Whether the answer may be a call of a tool."""
        return bool(self.tools) and self.tool_choice != "none"


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
