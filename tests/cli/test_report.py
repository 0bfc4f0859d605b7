"""`elasmo report`: writes the page beside the run, and refuses what is no run in one sentence."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from elasmo.cli.main import main
from elasmo.cli.report import commands, lineage_of
from elasmo.config import load
from elasmo.ingest.ingest import ingest
from elasmo.measure.run_folder import read


def elasmo(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["elasmo", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return int(exited.value.code or 0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "a run"
    folder.mkdir()
    (folder / "log.jsonl").write_text('{"event": "step", "step": 1, "time": 1.0, "loss": 2.5}\n')
    return folder


def test_the_page_is_written_beside_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: Path
) -> None:
    assert elasmo(monkeypatch, "report", str(run)) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert "Loss per modality" in (run / "report.html").read_text()


def test_the_page_can_go_elsewhere(monkeypatch: pytest.MonkeyPatch, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    assert elasmo(monkeypatch, "report", str(run), "--out", str(out)) == 0
    assert out.is_file() and not (run / "report.html").exists()


def test_what_is_no_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert elasmo(monkeypatch, "report", str(tmp_path / "absent")) == 2
    assert elasmo(monkeypatch, "report", str(tmp_path)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and all(line.startswith("elasmo: ") and line.endswith(".") for line in errors)


def test_commands_quote_the_path_and_follow_the_runs_state(run: Path) -> None:
    before = [command for _, command in commands(read(run))]
    assert ["elasmo", "publish", str(run)] in [shlex.split(command) for command in before]
    (run / "published").mkdir()
    (run / "published" / "manifest.json").write_text("{}")
    (run / "tensorboard").mkdir()
    after = [shlex.split(command) for _, command in commands(read(run))]
    assert ["elasmo", "serve", "ray.address=local", f"serve.published={run}/published"] in after
    assert ["tensorboard", "--logdir", f"{run}/tensorboard"] in after
    assert not any(command[1] == "publish" for command in after)


CONTRACT = """
name: talk
title: Small talk
source: files
licences: [{part: rows, licence: CC0-1.0, kind: real, origin: written for this test}]
modalities: [text]
"""


def test_lineage_follows_gold_to_the_files_it_came_from(run: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "talk"
    dataset.mkdir()
    (dataset / "contract.yaml").write_text(CONTRACT)
    turns = [("user", "Say {}."), ("assistant", "{}")]
    lines = [
        {
            "id": f"row{number}",
            "split": "heldout" if number % 2 else "train",
            "messages": [{"role": role, "segments": [{"text": text.format(number)}]} for role, text in turns],
        }
        for number in range(8)
    ]
    (dataset / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    lake = tmp_path / "lake"
    done = ingest(load(overrides=[f"data.lake={lake}", "data.vocab_size=300"]), dataset)
    gold = {"lake": str(lake), "dataset": str(dataset), "snapshot": done.gold}
    (run / "run.json").write_text(json.dumps({"gold": gold}))

    found = lineage_of(read(run))
    assert found.problem == ""
    assert [layer.name for layer in found.layers] == ["gold", "silver", "bronze", "source"]
    assert [layer.snapshot for layer in found.layers[:3]] == [layer.snapshot for layer in reversed(done.layers)]
    assert dict(found.layers[0].facts)["heldout"] == "4 rows"
    assert dict(found.layers[3].facts)["rows"] == "real, CC0-1.0"
    assert {source for row in found.rows for source in row.sources} <= {f"rows/rows.jsonl:{n}" for n in range(1, 9)}
    assert len(found.rows) == 2

    (run / "run.json").write_text(json.dumps({"gold": {**gold, "snapshot": "0" * 16}}))
    assert "0" * 16 in lineage_of(read(run)).problem


def test_a_run_without_gold_has_no_lineage(run: Path) -> None:
    assert lineage_of(read(run)).layers == ()
