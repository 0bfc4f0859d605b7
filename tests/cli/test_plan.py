from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from elasmo.cli.main import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["elasmo", "plan", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0)


def test_plan_prints_a_table_and_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "llava-7b", "--on", "8xA100", "--seq", "2048", "--batch", "128", "--explain") == 0
    out = capsys.readouterr().out
    assert "simulated" in out and "What binds" in out and "twice the peak" in out


def test_plan_prints_json_for_machines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "Llama-3-8B", "--on", "8xH100", "--batch", "64", "--top", "2", "--json", "--explain") == 0
    made = json.loads(capsys.readouterr().out)
    first = made["plans"][0]
    assert len(made["plans"]) == 2 and first["simulated"] is True
    assert sum(first["breakdown_s"].values()) == pytest.approx(first["seconds"])
    assert made["explanation"]["hardware_changes"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("Llama-3-70B", "--on", "8xA100"), "GiB more than"),
        (("Llama-3-8B", "--on", "8xH900"), "accelerator=H900 is not known"),
        (("Llama-3-8B", "--on", "H100"), "COUNTxACCELERATOR"),
        (("Llama-3-8B", "--on", "8xH100", "--fix", "tp=3"), "nearest legal layout"),
        (("Llama-3-8B", "--on", "8xA100", "--dtype", "fp8"), "no known peak"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    arguments: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert reason in capsys.readouterr().err


def test_a_curve_a_front_and_a_page_come_from_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "plan.html"
    base = ("Llama-3-8B", "--on", "8xH100", "--batch", "32", "--to", "16", "--pareto", "--fix", "cp=1")
    assert run(monkeypatch, *base, "--html", str(page)) == 0
    out = capsys.readouterr().out
    assert "of linear" in out and "front of time, price, energy" in out
    text = page.read_text()
    assert "Scaling" in text and "nothing beats" in text and "Memory of the fullest rank" in text
    assert run(monkeypatch, *base, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert [point["accelerators"] for point in made["scaling"]] == [8, 16] and made["front"]
