"""`elasmo ingest`: what it prints, and a user's mistake in one sentence with exit status 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasmo.cli.main import app
from elasmo.sources.contract import ContractError
from tests.pets import good_rows, write_dataset


def test_it_prints_snapshots_rows_refusals_and_the_next_command(tmp_path: Path) -> None:
    rows, media = good_rows()
    folder = write_dataset(tmp_path / "pets", [*rows, "{", "["], media)
    arguments = ["ingest", str(folder), f"data.lake={tmp_path / 'lake'}", "data.vocab_size=300"]
    first, second = (CliRunner().invoke(app, arguments) for _ in range(2))
    assert first.exit_code == second.exit_code == 0
    assert "written" in first.stdout and "train image+audio" in first.stdout
    assert "2 rows in quarantine" in first.stdout and "rows: the line is not valid JSON" in first.stdout
    assert "next   elasmo train data.dataset=" in first.stdout
    assert second.stdout.count("unchanged, hashes verified") == 3


def test_overrides_are_taken_without_a_folder(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["ingest", f"data.dataset={tmp_path}"])
    assert isinstance(result.exception, ContractError) and str(tmp_path) in str(result.exception)


@pytest.mark.parametrize(("folder", "sentence"), [("nowhere", "does not exist"), ("docs", "has no contract.yaml")])
def test_a_folder_that_is_no_dataset_is_one_sentence(folder: str, sentence: str) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "elasmo.cli.main", "ingest", folder]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env={"PYTHONPATH": str(root / "platform")})
    assert done.returncode == 2 and sentence in done.stderr
    assert done.stderr.startswith("elasmo: ") and "Traceback" not in done.stderr
