"""`elasmo forecast`: the table, the JSON, labels of synthetic evidence, and the hint of `elasmo ingest`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from elasmo.cli.forecast import warning
from elasmo.cli.main import app, mistake
from elasmo.data.manifest import SnapshotError
from elasmo.stages.stage_ledger import Ledger, at_part
from tests.pets import good_rows, write_dataset


def record(lake: Path, *bad: bool, synthetic: bool = False) -> None:
    """Runs of `silver` of dataset pets, True for one that fails in its second shard."""
    for fails in bad:
        try:
            with Ledger(lake, "pets", synthetic).stage("silver", 100, 10_000):
                at_part("pets-00000.parquet", 50, 5_000)
                time.sleep(0.003)
                at_part("pets-00001.parquet", 50, 5_000)
                if fails:
                    raise ValueError("pets-00001.parquet is cut")
        except ValueError:
            pass


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["forecast", *words], env={"COLUMNS": "250"})
    assert done.exit_code == 0, done.exception
    return done.stdout


def test_it_prints_chances_reasons_and_suggestions(tmp_path: Path) -> None:
    record(tmp_path, *[False] * 6, *[True] * 4)
    told = run("some/where/pets", f"data.lake={tmp_path}", "--memory-gb", "64", "--deadline", "600")
    assert "pets: the next run, under 64.0 GiB of memory and a deadline of 10 min 0 s a stage" in told
    assert "4 of 10 runs ended badly" in told and "synthetic" not in told
    assert "suggestion for silver: repair pets-00001.parquet, or leave it out (4 of 4 bad runs broke in it" in told


def test_json_holds_the_numbers(tmp_path: Path) -> None:
    record(tmp_path, *[False] * 6)
    (found,) = json.loads(run(str(tmp_path), "--json", "--deadline", "1e-3"))
    (stage,) = found["stages"]
    assert found["dataset"] == "pets" and found["limits"]["seconds"] == 1e-3
    assert (stage["stage"], stage["runs"], stage["unknown"]) == ("silver", 6, None)
    assert stage["overtime"]["value"] > 0.5 and 0 < stage["fails"]["value"] < 0.1
    assert stage["seconds"]["low"] < stage["seconds"]["expected"] < stage["seconds"]["high"]


def test_few_runs_are_unknown(tmp_path: Path) -> None:
    record(tmp_path, False, True)
    told = run("pets", f"data.lake={tmp_path}")
    assert "silver  2          unknown" in told and "unknown: 5 past runs are needed" in told


def test_injected_faults_count_only_when_asked_for_and_are_labelled(tmp_path: Path) -> None:
    record(tmp_path, *[False] * 6)
    record(tmp_path, *[True] * 6, synthetic=True)
    options = ("pets", f"data.lake={tmp_path}")
    assert "synthetic" not in run(*options)
    told = run(*options, "--synthetic")
    assert "12 [6 synthetic]" in told and "6 of 12 runs ended badly [6 synthetic]" in told
    assert told.rstrip().endswith("[synthetic evidence]")


def test_a_dataset_without_a_ledger_is_one_sentence(tmp_path: Path) -> None:
    result: Any = CliRunner().invoke(app, ["forecast", "cats", f"data.lake={tmp_path}"])
    assert isinstance(result.exception, SnapshotError)
    assert "has no stage ledger of dataset 'cats'" in (mistake(result.exception) or "")


@pytest.mark.parametrize(("bad", "warned"), [((False,) * 6, False), ((True,) * 6, True), ((True,) * 3, False)])
def test_only_a_real_warning_is_hinted(tmp_path: Path, bad: tuple[bool, ...], warned: bool) -> None:
    record(tmp_path, *bad)
    hint = warning(tmp_path, "pets")
    assert (hint is not None) == warned
    if hint is not None:
        assert hint.startswith("silver goes wrong with a chance of ") and hint.endswith("see elasmo forecast pets")


def test_ingestion_begins_with_the_hint(tmp_path: Path) -> None:
    record(tmp_path / "lake", *[True] * 6)
    folder = write_dataset(tmp_path / "pets", *good_rows())
    command = ["ingest", str(folder), f"data.lake={tmp_path / 'lake'}", "data.vocab_size=300"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0 and done.stdout.startswith("forecast  silver goes wrong with a chance of ")
    calm = write_dataset(tmp_path / "cats", *good_rows())
    told = CliRunner().invoke(app, ["ingest", str(calm), *command[2:]]).stdout
    assert "forecast" not in told
