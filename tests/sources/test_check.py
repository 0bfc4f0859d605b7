"""Checks of single values against hand-picked good and bad ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasmo.config import LimitsConfig
from elasmo.sources.check import Checks
from elasmo.sources.contract import Column, RecordField
from elasmo.sources.quarantine import RowError
from tests.pets import png, wav

FIELDS = {
    "age": RecordField(type="number", min=0, max=30, integer=True),
    "weight": RecordField(type="number", min=0.5),
    "coat": RecordField(type="category", categories=("black", "white"), nullable=True),
    "note": RecordField(type="text", nullable=True),
    "seen": RecordField(type="time", nullable=True),
}
CHECKS = Checks(FIELDS, LimitsConfig(image_pixels=100, audio_s=1.0), 22_050)


def check(kind: str, value: Any, **keys: Any) -> Any:
    return CHECKS.value("column", Column.model_validate({"type": kind, **keys}), value)


@pytest.mark.parametrize(
    ("kind", "value", "keys", "typed"),
    [
        ("integer", "7", {}, 7),
        ("number", "0.5", {"min": 0.5}, 0.5),
        ("string", "x", {}, "x"),
        ("string", None, {"nullable": True}, None),
        ("category", "b", {"categories": ["a", "b"]}, "b"),
        (
            "record",
            '{"age": 3, "weight": 2, "note": "", "seen": "2024-03-01"}',
            {},
            {"age": 3, "weight": 2.0, "coat": None, "note": "", "seen": "2024-03-01"},
        ),
    ],
)
def test_landed_text_becomes_typed(kind: str, value: Any, keys: dict[str, Any], typed: Any) -> None:
    result = check(kind, value, **keys)
    assert result == typed and type(result) is type(typed)


@pytest.mark.parametrize(
    ("kind", "value", "keys", "reason"),
    [
        ("integer", "7.5", {}, "it must be an integer"),
        ("integer", "seven", {}, "it must be an integer"),
        ("number", "nan", {}, "it must be a number"),
        ("number", "1e999", {}, "it must be a number"),
        ("integer", "10", {"min": 0, "max": 9}, "it must be at least 0 and at most 9"),
        ("string", None, {}, "column is missing"),
        ("category", "c", {"categories": ["a", "b"]}, "it must be one of a, b"),
        ("record", "[1]", {}, "must be an object of fields"),
        ("record", "{", {}, "not valid JSON"),
        ("record", '{"age": 31, "weight": 1}', {}, "record field age is 31; it must be at least 0 and at most 30"),
        ("record", '{"age": true, "weight": 1}', {}, "record field age is True"),
        ("record", '{"age": 1}', {}, "record field weight is missing"),
        ("record", '{"age": 1, "weight": 1, "coat": "pink"}', {}, "it must be one of black, white"),
        ("record", '{"age": 1, "weight": 1, "note": 2}', {}, "record field note is 2; it must be a string"),
        ("record", '{"age": 1, "weight": 1, "seen": 2}', {}, "record field seen is 2; it must be a date or time such"),
        ("record", '{"age": 1, "weight": 1, "seen": "noon"}', {}, "record field seen is 'noon'; it must be a date"),
        ("record", '{"age": 1, "weight": 1, "tail": 2}', {}, "record field 'tail' is unknown; fields are age"),
    ],
)
def test_a_bad_value_is_refused_with_the_allowed_ones(kind: str, value: Any, keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        check(kind, value, **keys)


def test_media_pass_unchanged_when_they_decode() -> None:
    assert check("image", png(0), width=8, height=8) == png(0)
    assert check("audio", wav(0)) == wav(0)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("image", b"", "0 bytes"),
        ("image", png(0)[:60], "image"),
        ("image", b"GIF no", "image"),
        ("image", png(0, size=11), "121 pixels"),
        ("audio", b"", "0 bytes"),
        ("audio", b"RIFF" + b"\0" * 60, "audio"),
        ("audio", wav(0, rate=16_000), "16000"),
        ("audio", wav(0, seconds=1.5), "1.50 s"),
    ],
)
def test_media_that_do_not_decode_are_refused(kind: str, value: bytes, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        check(kind, value)


def test_an_image_of_another_size_is_refused() -> None:
    with pytest.raises(RowError, match="is 8x8 pixels; it must be 9x9"):
        check("image", png(0), width=9, height=9)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("hello", "not valid JSON"),
        ([], "must be a list that ends with"),
        ([{"role": "user", "segments": [{"text": "a"}]}] * 2, "must end with a user's message and"),
        ([{"role": "robot", "segments": [{"text": "a"}]}] * 2, "role is 'robot'"),
        ([{"role": "user", "segments": []}] * 2, "not empty"),
        ([{"role": "user", "segments": [{"video": "a"}]}] * 2, "kind is 'video'"),
        ([{"role": "user", "segments": [{"text": 3}]}] * 2, "text segment is 3; it must be a string"),
        ([{"role": "user", "segments": [{"image": "../secret.png"}]}] * 2, "leaves the dataset folder"),
        ([{"role": "user", "segments": [{"image": "/etc/passwd"}]}] * 2, "leaves the dataset folder"),
        ([{"role": "user", "segments": [{"text": "a", "image": "b"}]}] * 2, "with one of text, image, audio, table"),
        ([{"role": "user", "segments": [{"table": {"age": -1, "weight": 1}}]}] * 2, "record field age is -1"),
        ([{"role": "assistant", "segments": [{"image": "a.png"}]}] * 2, "takes text segments only"),
    ],
)
def test_bad_messages_are_refused(messages: Any, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        check("messages", messages if isinstance(messages, str) else json.dumps(messages))
