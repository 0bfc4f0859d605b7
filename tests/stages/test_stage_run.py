"""Lines of ledgers put together: which runs are dead, and what is known of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from elasmo.stages.stage_ledger import FILE, born
from elasmo.stages.stage_run import SILENT_S, datasets_of, lives, read_ledger, runs_of


def begin(name: str, time: float, **changes: Any) -> dict[str, Any]:
    head = {"event": "begin", "format": 1, "id": name, "stage": "silver", "dataset": "pets", "time": time}
    return {**head, "host": "elsewhere", "pid": 1, "born": 1, "retries": 0, "synthetic": False, **changes}


@pytest.mark.parametrize(
    ("alive", "now", "outcome", "seconds"),
    [
        (True, 9000.0, "running", 8900.0),
        (False, 9000.0, "killed", 50.0),
        (None, 150.0 + SILENT_S - 1, "running", 49.0 + SILENT_S),
        (None, 150.0 + SILENT_S + 1, "killed", 50.0),
    ],
)
def test_an_unfinished_run_is_killed_once_its_process_is_gone_or_silent(
    alive: bool | None, now: float, outcome: str, seconds: float
) -> None:
    records = [
        begin("a", 100.0),
        {"event": "part", "id": "p", "of": "a", "part": "x", "time": 110.0},
        {"event": "pulse", "id": "a", "seconds": 20.0, "memory_bytes": 7, "time": 120.0},
        {"event": "pulse", "id": "a", "seconds": 50.0, "memory_bytes": 9, "time": 150.0},
    ]
    (run,) = runs_of(records, now, lambda _: alive)
    assert (run.outcome, run.seconds, run.memory_bytes) == (outcome, seconds, 9)
    assert [part.outcome for part in run.parts] == [outcome]
    assert run.broke_in == ("x" if outcome == "killed" else None)


def test_lines_of_runs_at_once_do_not_mix() -> None:
    end = {"event": "end", "outcome": "done", "seconds": 1.0, "rows_out": 1, "error": None}
    records = [
        begin("a", 1.0),
        begin("b", 2.0),
        {"event": "part", "id": "p", "of": "b", "part": "of b", "time": 3.0},
        {**end, "id": "a", "time": 4.0},
        {"event": "part end", "id": "p", "outcome": "done", "seconds": 1.5, "time": 4.5},
        {**end, "id": "b", "time": 5.0, "outcome": "failed"},
        {**end, "id": "unheard of", "time": 6.0},
    ]
    first, second = runs_of(records, 9.0, lambda _: False)
    assert (first.outcome, first.parts, second.outcome) == ("done", (), "failed")
    assert [(part.name, part.seconds) for part in second.parts] == [("of b", 1.5)]


def test_a_process_id_that_was_given_away_again_is_not_the_process() -> None:
    own = {"host": os.uname().nodename, "pid": os.getpid(), "born": born(os.getpid())}
    assert lives(own) is True
    assert lives({**own, "born": 1}) is False
    assert lives({**own, "pid": 2**22 + 1, "born": None}) is False
    assert lives({**own, "host": "elsewhere"}) is None


def test_of_a_long_ledger_the_end_is_read(tmp_path: Path) -> None:
    (tmp_path / "pets").mkdir()
    text = [json.dumps(begin(f"run-{n}", float(n))) + "\n" for n in range(100)]
    (tmp_path / "pets" / FILE).write_text("".join(text))
    tail = len(text[-1]) * 3 + 10  # and a piece of the line before
    assert [run.began for run in read_ledger(tmp_path, "pets", tail)] == [97.0, 98.0, 99.0]
    assert len(read_ledger(tmp_path, "pets")) == 100
    assert datasets_of(tmp_path) == ["pets"]


def test_lines_of_another_format_or_kind_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "pets").mkdir()
    odd = ['{"event": "begin"}', "[1]", "null", "\x00\x00", json.dumps(begin("old", 1.0, format=0))]
    (tmp_path / "pets" / FILE).write_text("\n".join([*odd, json.dumps(begin("a", 2.0))]))
    assert [run.began for run in read_ledger(tmp_path, "pets")] == [2.0]
    assert read_ledger(tmp_path, "cats") == []
