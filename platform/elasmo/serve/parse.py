"""Reads a request body into a `ChatRequest`; every refusal is one sentence naming the field, an OpenAI-shaped 400."""

from __future__ import annotations

import difflib
import json
from typing import Any

from pydantic import ValidationError

from elasmo.serve.openai_errors import ApiError, invalid_request
from elasmo.serve.openai_protocol import IGNORED, UNSUPPORTED, ChatRequest

_PART_TYPES = ("text", "image_url", "input_audio", "input_table")


def parse_chat_request(body: bytes) -> ChatRequest:
    """The validated request.

    Raises:
        ApiError: 400 for malformed JSON, an unknown or unsupported parameter, a wrong type or a value out of range.
    """
    fields = _read_json(body)
    _refuse_unsupported(fields)
    asked = {name: value for name, value in fields.items() if value is not None and name in ChatRequest.model_fields}
    try:
        return ChatRequest.model_validate(asked)
    except ValidationError as error:
        raise _api_error(dict(error.errors(include_url=False)[0])) from None


def _read_json(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise invalid_request(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    if b"\\u" in body:
        try:
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise invalid_request(
                "The request body has half a surrogate pair (\\ud800 to \\udfff); send whole characters.",
                code="invalid_json",
            ) from None
    if not isinstance(fields, dict):
        raise invalid_request(
            f"The request body is a JSON {type(fields).__name__}; it must be an object with model and messages.",
            code="invalid_json",
        )
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    known = [*ChatRequest.model_fields, *UNSUPPORTED, *IGNORED]
    for name, value in fields.items():
        if name in UNSUPPORTED and value is not None and value not in UNSUPPORTED[name]:
            raise invalid_request(
                f"The parameter {name!r} is not supported by this server; leave it out.",
                name,
                "unsupported_parameter",
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            mend = f"did you mean {near[0]!r}?" if near else "leave it out."
            raise invalid_request(f"Unknown parameter {name!r}; {mend}", name, "unknown_parameter")


def _api_error(error: dict[str, Any]) -> ApiError:
    param = _path(error["loc"])
    kind, value, context = error["type"], error.get("input"), error.get("ctx", {})
    if kind == "value_error":
        message = str(context["error"])
        field = _first_word(message)
        return invalid_request(f"{message if field else message[0].upper() + message[1:]}.", param or field)
    if kind == "missing":
        return invalid_request(f"{param} is missing.", param, "missing_required_parameter")
    if kind == "extra_forbidden":
        return invalid_request(f"{param} is not a field this server knows; leave it out.", param, "unknown_parameter")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        got = value.get("type") if isinstance(value, dict) else value
        param = f"{param}.type"
        return invalid_request(f"{param} is {_short(got)}; allowed are {', '.join(_PART_TYPES)}.", param)
    if kind == "too_short" and isinstance(value, list):
        return invalid_request(f"{param} is empty; it must hold at least one item.", param, "empty_array")
    if ".record." in param:
        return invalid_request(f"{param} is {_short(value)}; a cell is a number, a string or null.", param)
    wanted = error["msg"].partition(" should ")[2] or error["msg"]
    return invalid_request(f"{param} is {_short(value)}: it should {wanted}.", param)


def _path(location: tuple[str | int, ...]) -> str:
    """`messages[0].content[1].image_url.url` of a pydantic location, without the union tags pydantic puts in it."""
    path, skip_tag = "", False
    for position, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
            skip_tag = position > 0 and location[position - 1] == "content"
        elif skip_tag:
            skip_tag = False
        elif not (position and location[position - 2] == "record"):  # the branch of a cell's union: int, float, str
            path += f".{part}" if path else part
    return path


def _first_word(message: str) -> str | None:
    word = message.split("=", 1)[0].split(" ", 1)[0]
    return word if word in ChatRequest.model_fields else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
