"""Refusals are counted by kind: what names one row or measures it does not make a kind of its own."""

from __future__ import annotations

import pytest

from elasmo.sources.quarantine import Refusal


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("audio: The audio lasts 11.55 s; at most 8 s are allowed (audio_s).", "t: audio: The audio lasts … s"),
        (
            "stamp is pictures/a/gift, which was refused or never landed",
            "t: stamp is …, which was refused or never landed",
        ),
        ("id is the same as in row 'rows.jsonl:4'; exact duplicates are kept once", "t: id is the same as in row …"),
        ("scan is 9x8 pixels; it must be 8x8", "t: scan is … pixels"),
        ("caption is missing", "t: caption is missing"),
        ('unknown key "it\'s"; a line takes id', "t: unknown key …"),
    ],
)
def test_a_kind_leaves_out_names_paths_and_figures(reason: str, kind: str) -> None:
    assert Refusal("silver", "t", "key", reason).kind == kind
