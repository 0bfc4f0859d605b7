from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from elasmo.cli.main import main
from elasmo.simulate.predict import write_table
from elasmo.simulate.published import read_table


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["elasmo", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0)


def test_predict_fills_a_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    write_table(read_table("T03_korthikanti2022_table5_a100"), source)
    assert run(monkeypatch, "simulate", "predict", str(source), "--out", str(out)) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10 and all(float(row["predicted_iter_time_s"]) > 0 for row in rows)
    assert "10 of 10 rows predicted" in capsys.readouterr().out


def test_predict_without_a_file_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "simulate", "predict") == 2
    assert "give its path" in capsys.readouterr().err


def test_serve_compares_pools_in_one_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = "poisson:rate=20,prompt=2000,output=100,count=200"
    assert run(monkeypatch, "simulate", "serve", "Llama-3.1-8B", "--on", "4xH100", "--load", load, "--compare") == 0
    shown = capsys.readouterr().out
    assert "co-located" in shown and "Apart against co-located: TPOT median" in shown and "ITL p99 -" in shown


def test_serve_prints_numbers_for_machines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    load = "bursts:rate=5,prompt=500,output=50,count=50,size=5"
    command = ("simulate", "serve", "Llama-3.1-8B", "--on", "2xH100", "--split", "1+1", "--load", load, "--json")
    assert run(monkeypatch, *command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] == 50 and found["ttft_s"]["p50"] > 0 and found["moved_gb"] > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--split", "1+1"), "must be PREFILL+DECODE replicas that add up to 4"),
        (("--tp", "3"), "must divide the model's 32 attention heads"),
        (("--engine", "steam"), "engine=steam is not known"),
        (("--load", "poisson:rate=4"), "lacks prompt, output"),
        (("--routing", "luck"), "routing=luck is not known"),
    ],
)
def test_serve_refuses_in_a_sentence(
    options: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "simulate", "serve", "Llama-3.1-8B", "--on", "4xH100", *options) == 2
    assert sentence in capsys.readouterr().err


def test_serve_finds_the_rate_that_meets_the_objective(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = "poisson:rate=8,prompt=950,output=60,media=1,count=100"
    assert run(monkeypatch, "simulate", "serve", "Qwen3-VL-8B", "--on", "1xH100", "--load", load, "--goodput") == 0
    assert "requests/s" in capsys.readouterr().out
