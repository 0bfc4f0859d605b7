"""The fields of a request that say how tokens are chosen, the same for chats and bare prompts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MAX_CHOICES = 16
MAX_STOPS = 4
MAX_BIASES = 1024

Penalty = Annotated[float, Field(ge=-2.0, le=2.0, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)]


class Wire(BaseModel):
    """A request object: keys that are not named here are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class StreamOptions(Wire):
    """What a stream carries besides tokens."""

    include_usage: bool = False
    include_obfuscation: bool = False


class SamplingFields(Wire):
    """Defaults are OpenAI's; `top_k` and `min_p` are of the open engines."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    temperature: Annotated[float, Field(ge=0.0, le=2.0, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    min_p: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)] = 0.0
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default=[], max_length=MAX_STOPS)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Bias] = Field(default={}, max_length=MAX_BIASES)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @model_validator(mode="after")
    def _options_of_streams(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true; leave it out")
        return self

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with the token counts."""
        return self.stream_options is not None and self.stream_options.include_usage
