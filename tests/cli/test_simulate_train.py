from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from elasmo.cli.main import main

TRAIN = ("Llama-3-8B", "--on", "8xH100", "--batch", "32")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["elasmo", "simulate", "train", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0)


def test_a_layout_is_simulated_for_people_machines_and_browsers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, page = tmp_path / "step.json", tmp_path / "step.html"
    layout = ("--layout", "tp=2,pp=2,recompute=full")
    assert run(monkeypatch, *TRAIN, *layout, "--trace", str(trace), "--html", str(page)) == 0
    out = capsys.readouterr().out
    assert "simulated" in out and "goodput" in out and "optimizer states" in out
    assert len({event["tid"] for event in json.loads(trace.read_text())["traceEvents"]}) == 2
    assert "Stages by time" in page.read_text()
    assert run(monkeypatch, *TRAIN, *layout, "--json", "--static") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["plan"]["dp"] == 2 and made["plan"]["recompute"] == ["full"] and made["hfu"] > made["mfu"] > 0.1
    assert made["useful_tokens_per_s"] == pytest.approx(made["tokens_per_s"] * made["goodput"]["useful"])


def test_without_a_layout_the_fastest_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *TRAIN, "--json") == 0
    best = json.loads(capsys.readouterr().out)["seconds"]
    assert run(monkeypatch, *TRAIN, "--layout", "tp=8", "--json") == 0
    assert best < json.loads(capsys.readouterr().out)["seconds"]


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ("tp=3", "nearest legal layout is"),
        ("zero=0", "GiB more than the"),
        ("heads=3", "layout=heads=3 is not known"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(
    layout: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *TRAIN, "--layout", layout) == 2
    assert reason in capsys.readouterr().err
