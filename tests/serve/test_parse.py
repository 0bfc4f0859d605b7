"""Request bodies: what is accepted, and the sentence, parameter and code of each refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasmo.serve.openai_errors import ApiError
from elasmo.serve.openai_protocol import ChatRequest, ImagePart, TextPart
from elasmo.serve.parse import parse_request


def parse_chat(body: bytes) -> ChatRequest:
    return parse_request(body, ChatRequest)


USER = {"role": "user", "content": "hello"}
TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def refused(request: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat(request)
    assert caught.value.status == 400
    assert caught.value.message.endswith((".", "?"))
    return caught.value


def content(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_a_string_message_is_one_text_part_and_defaults_are_openais() -> None:
    request = parse_chat(body())
    assert request.messages[0].content == [TextPart(type="text", text="hello")]
    assert (request.temperature, request.top_p, request.n, request.stream, request.stop) == (1.0, 1.0, 1, False, [])


def test_parts_keep_their_order_and_kind() -> None:
    parts = (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_table", "record": {"age": 41, "score": 0.5, "name": "Ann", "note": None}},
        {"type": "text", "text": "?"},
    )
    image, table, text = parse_chat(body(messages=content(*parts))).messages[0].content
    assert isinstance(image, ImagePart) and isinstance(text, TextPart)
    assert table.model_dump()["record"] == {"age": 41, "score": 0.5, "name": "Ann", "note": None}


def test_null_means_left_out() -> None:
    assert parse_chat(body(seed=None, stop=None, tools=None, max_tokens=None)).seed is None


def test_parameters_that_ask_for_nothing_are_accepted() -> None:
    parse_chat(body(tools=[], logprobs=False, frequency_penalty=0.0, response_format={"type": "text"}, user="me"))


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": content()}, "messages[0].content", "empty_array"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "invalid_value"),
        ({"messages": [{**USER, "tool_calls": [TOOL_CALL]}]}, "messages[0]", "invalid_value"),
        ({"messages": content({"type": "video_url"})}, "messages[0].content[0].type", "invalid_value"),
        ({"messages": content({"text": "x"})}, "messages[0].content[0].type", "invalid_value"),
        ({"messages": content("x")}, "messages[0].content[0]", "invalid_value"),
        (
            {"messages": content({"type": "image_url", "image_url": {"url": 3}})},
            "messages[0].content[0].image_url.url",
            "invalid_value",
        ),
        (
            {"messages": content({"type": "input_audio", "input_audio": {"data": "AA", "format": "mp3"}})},
            "messages[0].content[0].input_audio.format",
            "invalid_value",
        ),
        (
            {"messages": content({"type": "input_table", "record": {"age": [1]}})},
            "messages[0].content[0].record.age",
            "invalid_value",
        ),
        ({"temperature": "0.5"}, "temperature", "invalid_value"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"n": 17}, "n", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "invalid_value"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"stop": ""}, "stop[0]", "invalid_value"),
        ({"seed": 1 << 63}, "seed", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [tool("f"), tool("f")]}, "tools", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        (
            {"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "invalid_value",
        ),
        ({"tools": [tool("f")], "response_format": {"type": "json_object"}}, "response_format", "invalid_value"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"presence_penalty": 2.5}, "presence_penalty", "invalid_value"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {"hello": 1}}, "logit_bias.hello", "invalid_value"),
        ({"tool_choice": "maybe"}, "tool_choice", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
            "invalid_value",
        ),
        ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
    ],
)
def test_a_refusal_names_the_parameter(fields: dict[str, Any], param: str, code: str) -> None:
    error = refused(body(**fields))
    assert (error.param, error.code) == (param, code)
    assert param in error.message


def test_an_unknown_parameter_gets_a_suggestion() -> None:
    error = refused(body(temprature=0))
    assert error.code == "unknown_parameter"
    assert "'temperature'" in error.message


def test_media_from_an_assistant_is_refused() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert "assistant" in refused(body(messages=[{"role": "assistant", "content": [part]}])).message


@pytest.mark.parametrize(
    "request_body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"model": "m", "temperature": NaN}']
)
def test_what_is_not_a_json_object_is_refused(request_body: bytes) -> None:
    assert refused(request_body).code == "invalid_json"


def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_not() -> None:
    assert refused(body(messages=content({"type": "text", "text": "\ud800"}))).code == "invalid_json"
    request = parse_chat(body(messages=content({"type": "text", "text": "\N{FISH}"})))
    assert request.messages[0].content == [TextPart(type="text", text="\N{FISH}")]


def test_a_number_too_large_for_a_float_is_refused() -> None:
    request = (
        b'{"model": "m", "messages": [{"role": "user", "content": [{"type": "input_table", "record": {"a": 1e999}}]}]}'
    )
    assert refused(request).param == "messages[0].content[0].record.a"
