"""`elasmo trace`: the rows behind a step, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_report import elasmo
from tests.pets import config, pets  # noqa: F401
from tests.train.test_trace import run  # noqa: F401


def test_the_rows_behind_a_step_are_listed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Path,  # noqa: F811
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert elasmo(monkeypatch, "trace", str(run), "--step", "2") == 0
    shown = capsys.readouterr().out
    assert "step 2: 8 rows on attempt 1, 2 ranks, loss 0.5000" in shown and "equals the plan's" in shown
    assert "rows/rows.jsonl:" in shown and "gold" in shown and "bronze" in shown


def test_the_whole_trace_is_there_as_json(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Path,  # noqa: F811
) -> None:
    assert elasmo(monkeypatch, "trace", str(run), "--step", "5", "--eval", "--json") == 0
    tree = json.loads(capsys.readouterr().out)
    assert len(tree["rows"]) == 4 and tree["proven"] is False and tree["rows"][0]["sources"][0]["sha256"]


def test_a_step_that_is_not_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Path,  # noqa: F811
) -> None:
    assert elasmo(monkeypatch, "trace", str(run), "--step", "99") == 2
    error = capsys.readouterr().err
    assert error.startswith("elasmo: The log of") and "has no committed step 99" in error and error.count("\n") == 1
