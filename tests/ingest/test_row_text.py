"""Modality and running text of rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasmo.ingest.row_text import modality_of, text_of
from elasmo.sources.contract import Column, TableSpec

COLUMNS = {
    "key": Column(type="string"),
    "image": Column(type="image", nullable=True),
    "sound": Column(type="audio", nullable=True),
    "record": Column(type="record", nullable=True),
    "messages": Column(type="messages", nullable=True),
}
SPEC = TableSpec(columns=COLUMNS)
TALK = json.dumps(
    [
        {"role": "user", "segments": [{"image": "a.png"}, {"table": {"age": 3}}, {"text": "How old?"}]},
        {"role": "assistant", "segments": [{"text": "Three."}]},
    ]
)


@pytest.mark.parametrize(
    ("row", "modality"),
    [
        ({}, "text"),
        ({"image": b"x"}, "image"),
        ({"sound": b"x", "image": b"x"}, "image+audio"),
        ({"record": {"age": 3}}, "table"),
        ({"messages": TALK}, "image+table"),
        ({"messages": TALK, "sound": b"x"}, "image+audio+table"),
    ],
)
def test_modality_is_of_what_a_row_holds(row: dict[str, Any], modality: str) -> None:
    assert modality_of(SPEC, {**dict.fromkeys(COLUMNS), "key": "a", **row}) == modality


def test_the_text_of_messages_is_apart_from_what_they_point_at() -> None:
    text, context = text_of(SPEC, "messages", TALK)
    assert text == "How old?\nThree." and json.loads(context) == [{"image": "a.png"}, {"table": {"age": 3}}]
    assert text_of(SPEC, "key", "a note") == ("a note", "")
