from __future__ import annotations

import csv
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
