"""Media in requests: base64 only, checked for size before it is decoded."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from elasmo.config import LimitsConfig
from elasmo.model.sample import Audio, Image, Message, Table, Text
from elasmo.serve.media_parts import to_messages
from elasmo.serve.openai_errors import ApiError
from elasmo.serve.openai_protocol import ChatMessage

LIMITS = LimitsConfig(image_bytes=100, audio_bytes=200)


def user(*parts: dict[str, Any]) -> ChatMessage:
    return ChatMessage.model_validate({"role": "user", "content": list(parts)})


def image(url: str) -> ChatMessage:
    return user({"type": "image_url", "image_url": {"url": url}})


def audio(data: str) -> ChatMessage:
    return user({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def refused(message: ChatMessage) -> ApiError:
    with pytest.raises(ApiError) as caught:
        to_messages([message], LIMITS)
    assert caught.value.param is not None and caught.value.param.startswith("messages[0].content[0].")
    return caught.value


def test_every_kind_of_part_becomes_its_segment_in_order() -> None:
    message = user(
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(b'picture')}"}},
        {"type": "input_audio", "input_audio": {"data": encoded(b"sound"), "format": "wav"}},
        {"type": "input_table", "record": {"age": 41, "name": None}},
        {"type": "text", "text": "what?"},
    )
    system = ChatMessage.model_validate({"role": "developer", "content": "be brief"})
    assert to_messages([system, message], LIMITS) == (
        Message("system", (Text("be brief"),)),
        Message("user", (Image(b"picture"), Audio(b"sound"), Table({"age": 41, "name": None}), Text("what?"))),
    )


@pytest.mark.parametrize("size", [98, 99, 100])
def test_bytes_up_to_the_limit_pass(size: int) -> None:
    (message,) = to_messages([image(f"data:image/png;base64,{encoded(bytes(size))}")], LIMITS)
    assert message.segments == (Image(bytes(size)),)


@pytest.mark.parametrize("size", [101, 103, 1000])
def test_more_bytes_are_413_and_name_the_limit(size: int) -> None:
    error = refused(image(f"data:image/png;base64,{encoded(bytes(size))}"))
    assert error.status == 413
    assert "limits.image_bytes" in error.message and "100" in error.message


def test_audio_has_its_own_limit() -> None:
    to_messages([audio(encoded(bytes(200)))], LIMITS)
    assert refused(audio(encoded(bytes(204)))).status == 413


@pytest.mark.parametrize("url", ["http://example.com/a.png", "HTTPS://example.com/a.png", "file:///etc/passwd"])
def test_remote_images_are_never_fetched(url: str) -> None:
    error = refused(image(url))
    assert (error.status, error.code) == (400, "remote_media_not_allowed")
    assert "data URIs only" in error.message


@pytest.mark.parametrize(
    "url",
    [
        "",
        "AAAA",
        "data:image/png,AAAA",
        "data:image/png;base64",
        "data:text/plain;base64,AAAA",
        "data:image/png;base64,A?==",
        "data:image/png;base64,AAA",
        "data:image/png;base64,é",
        "data:image/png;base64,",
    ],
)
def test_malformed_uris_are_400(url: str) -> None:
    assert refused(image(url)).status == 400


def test_malformed_and_empty_audio_is_400() -> None:
    assert refused(audio("not base64")).status == 400
    assert refused(audio("")).status == 400
