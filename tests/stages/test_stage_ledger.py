"""The ledger: every end of a stage is told, lines of writers at once stay whole, and it stops nothing."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from elasmo.stages.stage_ledger import FILE, Ledger, Stage, at_part, sentence
from elasmo.stages.stage_run import StageRun, read_ledger


def lines(lake: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (lake / "pets" / FILE).read_text().splitlines()]


def only(lake: Path) -> StageRun:
    (run,) = read_ledger(lake, "pets")
    return run


def test_a_stage_tells_its_cost_and_its_parts(tmp_path: Path) -> None:
    with Ledger(tmp_path, "pets").stage("silver", rows_in=7, bytes_in=900, retries=2) as stage:
        for number in range(2):
            at_part(f"pets-{number}", 3, 400 + number)
            sum(range(200_000))
        at_part(None)
        stage.rows_out, stage.bytes_out, stage.quarantined = 6, 800, {"pets: no key": 1}
    run = only(tmp_path)
    assert (run.stage, run.dataset, run.outcome, run.error, run.retries) == ("silver", "pets", "done", None, 2)
    assert (run.rows_in, run.bytes_in, run.rows_out, run.bytes_out) == (7, 900, 6, 800)
    assert run.quarantined == {"pets: no key": 1} and run.largest_part_bytes == 401
    assert [(part.name, part.outcome, part.rows, part.bytes) for part in run.parts] == [
        ("pets-0", "done", 3, 400),
        ("pets-1", "done", 3, 401),
    ]
    assert run.seconds is not None and run.cpu_s is not None and run.memory_bytes is not None
    assert sum(part.seconds or 0 for part in run.parts) <= run.seconds < 5
    assert not run.reused and not run.synthetic and run.broke_in is None


def test_an_error_is_told_with_the_part_and_raised(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Ledger(tmp_path, "pets").stage("bronze"):
        at_part("good.csv")
        at_part("bad.csv")
        raise KeyError("no such\ncolumn")
    run = only(tmp_path)
    assert (run.outcome, run.error, run.broke_in) == ("failed", "KeyError: 'no such\\ncolumn'", "bad.csv")
    assert sentence(ValueError("two\n lines")) == "two lines" and len(sentence(ValueError("x" * 999))) == 300


def test_an_interruption_is_no_fault_of_the_stage(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Ledger(tmp_path, "pets").stage("bronze"):
        at_part("a.csv")
        raise KeyboardInterrupt
    run = only(tmp_path)
    assert run.outcome == "killed" and run.interrupted and run.broke_in is None


def test_outside_of_a_stage_a_part_is_nobodys(tmp_path: Path) -> None:
    at_part("a.csv")
    with Ledger(tmp_path, "pets").stage("bronze"):
        pass
    at_part("b.csv")
    assert only(tmp_path).parts == ()


def test_a_stage_that_is_killed_shows_unfinished_with_its_part(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with Ledger(tmp_path, "pets").stage("silver"):
            at_part("pets-0")
            at_part("pets-1")
            deadline = time.monotonic() + 5  # until a pulse tells the memory
            while '"pulse"' not in (tmp_path / "pets" / FILE).read_text() and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    run = only(tmp_path)
    assert (run.outcome, run.error, run.broke_in) == ("killed", "its process was killed", "pets-1")
    assert run.memory_bytes is not None and run.memory_bytes > 1 << 20 and run.memory_method == "last pulse"


def test_a_stage_at_work_is_running(tmp_path: Path) -> None:
    with Ledger(tmp_path, "pets").stage("silver"):
        assert only(tmp_path).outcome == "running"


def test_a_torn_line_costs_no_other(tmp_path: Path) -> None:
    with Ledger(tmp_path, "pets").stage("bronze"):
        pass
    with open(tmp_path / "pets" / FILE, "ab") as file:
        file.write(b'{"event": "begin", "id": "ab')
    with Ledger(tmp_path, "pets").stage("silver"):
        pass
    assert [run.stage for run in read_ledger(tmp_path, "pets")] == ["bronze", "silver"]


def write_many(lake: Path, name: str, count: int) -> None:
    ledger = Ledger(lake, "pets")
    for number in range(count):
        ledger.write({"event": "part", "id": f"{name}-{number}", "of": name, "part": "x" * 5000})


def test_writers_at_once_leave_every_line_whole(tmp_path: Path) -> None:
    """Lines longer than a page, which the kernel need not append in one piece."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(tmp_path, name, 60)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(line["id"] for line in lines(tmp_path)) == sorted(f"{n}-{i}" for n in "abc" for i in range(60))


def test_a_ledger_that_cannot_be_written_is_logged_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pets").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING), Ledger(tmp_path, "pets").stage("bronze"):
        at_part("a")
    assert [record.message.endswith("this ingestion is not recorded in full.") for record in caplog.records] == [True]
    assert read_ledger(tmp_path, "pets") == []


def test_a_pulse_is_written_when_memory_has_grown_or_time_has_passed(tmp_path: Path) -> None:
    stage = Stage(Ledger(tmp_path, "pets"), "s")
    for seconds, size in ((0.1, 100), (0.2, 110), (0.3, 126), (29.0, 130), (31.0, 131), (61.5, 131)):
        stage.pulse(seconds, size)
    assert [(line["seconds"], line["memory_bytes"]) for line in lines(tmp_path)] == [
        (0.1, 100),
        (0.3, 126),
        (31.0, 131),
        (61.5, 131),
    ]


def test_a_record_costs_little(tmp_path: Path) -> None:
    with Ledger(tmp_path, "pets").stage("silver"):
        began = time.process_time()
        for number in range(200):
            at_part(f"pets-{number}", 1, 1)
        spent = time.process_time() - began
    assert spent / 200 < 0.002
