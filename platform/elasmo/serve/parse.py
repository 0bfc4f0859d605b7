"""Reads a request body into a typed request; every refusal is one sentence naming the field, an OpenAI-shaped 400."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from elasmo.serve.openai_errors import ApiError, invalid_request
from elasmo.serve.openai_protocol import IGNORED, UNSUPPORTED

_UNION_BRANCH = re.compile(r"(\[key\]|str|int|NamedTool)$|(literal|list|constrained-\w+|function-\w+)\[")
_PART_TYPES = ("text", "image_url", "input_audio", "input_table")


T = TypeVar("T", bound=BaseModel)


def parse_request(body: bytes, kind: type[T]) -> T:
    """The validated request.

    Raises:
        ApiError: 400 for malformed JSON, an unknown or unsupported parameter, a wrong type or a value out of range.
    """
    fields = _read_json(body)
    _refuse_unsupported(fields, kind)
    asked = {name: value for name, value in fields.items() if value is not None and name in kind.model_fields}
    try:
        return kind.model_validate(asked)
    except ValidationError as error:
        raise _api_error(dict(error.errors(include_url=False)[0]), kind) from None


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
            f"The request body is a JSON {type(fields).__name__}; it must be an object.",
            code="invalid_json",
        )
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_unsupported(fields: dict[str, Any], kind: type[BaseModel]) -> None:
    known = [*kind.model_fields, *UNSUPPORTED, *IGNORED]
    for name, value in fields.items():
        if (
            name in UNSUPPORTED
            and name not in kind.model_fields
            and value is not None
            and value not in UNSUPPORTED[name]
        ):
            raise invalid_request(
                f"The parameter {name!r} is not supported by this server; leave it out.",
                name,
                "unsupported_parameter",
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            mend = f"did you mean {near[0]!r}?" if near else "leave it out."
            raise invalid_request(f"Unknown parameter {name!r}; {mend}", name, "unknown_parameter")


def _api_error(error: dict[str, Any], kind: type[BaseModel]) -> ApiError:
    param = _path(error["loc"])
    problem, value, context = error["type"], error.get("input"), error.get("ctx", {})
    if problem == "value_error":
        message = str(context["error"])
        field = _first_word(message, kind)
        return invalid_request(f"{param}: {message}." if param else f"{message}.", param or field)
    if problem == "missing":
        return invalid_request(f"{param} is missing.", param, "missing_required_parameter")
    if problem == "extra_forbidden":
        return invalid_request(f"{param} is not a field this server knows; leave it out.", param, "unknown_parameter")
    if problem in ("union_tag_invalid", "union_tag_not_found"):
        got = value.get("type") if isinstance(value, dict) else value
        param = f"{param}.type"
        allowed = str(context.get("expected_tags", "")).replace("'", "") or ", ".join(_PART_TYPES)
        return invalid_request(f"{param} is {_short(got)}; allowed are {allowed}.", param)
    if problem == "too_short" and isinstance(value, list):
        return invalid_request(f"{param} is empty; it must hold at least one item.", param, "empty_array")
    if ".record." in param:
        return invalid_request(f"{param} is {_short(value)}; a cell is a number, a string or null.", param)
    wanted = error["msg"].partition(" should ")[2] or error["msg"]
    return invalid_request(f"{param} is {_short(value)}: it should {wanted}.", param)


def _path(location: tuple[str | int, ...]) -> str:
    """`messages[0].content[1].image_url.url` of a pydantic location, without the union tags pydantic puts in it."""
    path = ""
    for position, part in enumerate(location):
        before = location[max(0, position - 2) : position]
        tagged = before[-1:] == ("response_format",) or (before[:1] == ("content",) and isinstance(before[-1], int))
        in_record = before[:1] == ("record",)  # the branch of a cell's union: int, float, str
        if isinstance(part, int):
            path += f"[{part}]"
        elif not tagged and not in_record and not _UNION_BRANCH.match(part):
            path += f".{part}" if path else part
    return path


def _first_word(message: str, kind: type[BaseModel]) -> str | None:
    word = message.split("=", 1)[0].split(" ", 1)[0]
    return word if word in kind.model_fields else None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
