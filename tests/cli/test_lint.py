"""`elasmo lint`: exit status 0 with warnings only, 1 with an error, and each finding on a line of its own."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from elasmo.cli.main import app
from tests.pets import good_rows, png, write_dataset


def test_the_exit_status_says_whether_something_would_be_refused(tmp_path: Path) -> None:
    rows, media = good_rows()
    folder = write_dataset(tmp_path / "pets", rows, {**media, "media/left.png": png(1)})
    result = CliRunner().invoke(app, ["lint", str(folder)])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{folder}/media/left.png: warning: is named by no line of rows.jsonl; it is not ingested.",
        f"{folder}: 0 errors, 1 warning",
    ]
    write_dataset(folder, [*rows, "{"], {})
    result = CliRunner().invoke(app, ["lint", str(folder)])
    assert result.exit_code == 1 and f"{folder}/rows.jsonl:25: error: the line is not valid JSON" in result.stdout
    assert result.stdout.splitlines()[-1] == f"{folder}: 1 error, 1 warning"


def test_the_stricter_of_contract_and_config_holds(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "pets", *good_rows())
    result = CliRunner().invoke(app, ["lint", str(folder), "data.limits.image_pixels=10"])
    assert result.exit_code == 1 and "has 8x8 pixels; at most 10 are allowed" in result.stdout
