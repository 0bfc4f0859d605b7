from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from elasmo.cli.main import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["elasmo", "simulate", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0)


LADDER = (
    "ladder",
    "Llama-3-8B",
    "--on",
    "8xH100",
    "--seq",
    "2048",
    "--batch",
    "16",
    "--fix",
    "tp=2",
    "--fix",
    "micro_batch=1",
)


def test_a_ladder_is_written_for_people_and_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "ladder.md"
    assert run(monkeypatch, *LADDER, "--out", str(page)) == 0
    assert "| + packing, modality balance |" in page.read_text() and "simulated" in page.read_text()
    assert run(monkeypatch, *LADDER, "--samples", "mean=700,spread=0.5", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert len(made) == 1 and len(made[0]["cumulative"]) == 9
    assert made[0]["cumulative"][0]["useful"] < made[0]["cumulative"][-1]["useful"] <= 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("ladder", "Llama-3-8B"), "needs --on"),
        ((*LADDER, "--samples", "900"), "is not of the form"),
        ((*LADDER, "--from", "fp64"), "dtype=fp64"),
        (("ladder", "Llama-3-8B", "--on", "8xTPU v5p", "--from", "tf32"), "dtype=tf32"),
    ],
)
def test_what_cannot_be_climbed_is_said_in_a_sentence(
    arguments: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert reason in capsys.readouterr().err
