"""`elasmo preview`: writes the page where it is told to, and a mistake is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasmo.cli.main import app
from elasmo.config import load
from elasmo.ingest.ingest import ingest
from elasmo.ingest.preview_cards import PreviewError
from tests.pets import good_rows, write_dataset


def test_the_page_holds_the_rows_asked_for(tmp_path: Path) -> None:
    folder, lake, out = write_dataset(tmp_path / "pets", *good_rows()), tmp_path / "lake", tmp_path / "deep" / "p.html"
    ingest(load(overrides=[f"data.lake={lake}", "data.vocab_size=300"], env={}), folder)
    arguments = ["preview", str(folder), f"data.lake={lake}", "--out", str(out)]
    result = CliRunner().invoke(app, [*arguments, "--rows", "5"])
    assert (result.exit_code, result.stdout.strip()) == (0, str(out))
    assert out.read_text().count("<article") == 5
    assert CliRunner().invoke(app, [*arguments, "--keys", "row-3, row-21"]).exit_code == 0
    assert out.read_text().count("<article") == 2 and "row-21" in out.read_text()
    assert CliRunner().invoke(app, [*arguments, "--layer", "silver", "--keys", "images/media/0.png"]).exit_code == 0


@pytest.mark.parametrize(("option", "sentence"), [("--keys=zebra", "zebra"), ("--rows=900", "--rows is 900")])
def test_a_mistake_names_the_option(tmp_path: Path, option: str, sentence: str) -> None:
    folder, lake = write_dataset(tmp_path / "pets", *good_rows()), tmp_path / "lake"
    ingest(load(overrides=[f"data.lake={lake}", "data.vocab_size=300"], env={}), folder)
    result = CliRunner().invoke(app, ["preview", "pets", f"data.lake={lake}", option])
    assert isinstance(result.exception, PreviewError) and sentence in str(result.exception)
