"""Finding and reading a run folder: by path or id, with parts missing, with a broken file named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elasmo.measure.run_folder import RunFolderError, find, read


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text('{"event": "step", "step": 1, "time": 1.0}\n')
    (folder / "run.json").write_text(json.dumps({"run": folder.name, "status": "running"}))
    return folder


def test_a_run_is_found_by_its_path_or_its_id(tmp_path: Path) -> None:
    run = make(tmp_path / "digits-1")
    assert find(str(run), tmp_path / "elsewhere") == run
    assert find("digits-1", tmp_path) == run


def test_an_unknown_run_is_refused_with_the_ones_there(tmp_path: Path) -> None:
    make(tmp_path / "digits-1")
    with pytest.raises(RunFolderError, match=r"No run 'digits-2'.*digits-1"):
        find("digits-2", tmp_path)
    with pytest.raises(RunFolderError, match="holds no run"):
        find("digits-2", tmp_path / "empty")


def test_what_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    folder = read(make(tmp_path / "digits-1"))
    assert (folder.best, folder.demo, folder.served, folder.config) == ({}, {}, [], "")
    assert (folder.published, folder.tensorboard) == (False, False)
    assert folder.run["status"] == "running" and folder.best_step is None


def test_the_best_step_is_read_from_the_checkpoints_name(tmp_path: Path) -> None:
    run = make(tmp_path / "digits-1")
    (run / "best.json").write_text(json.dumps({"path": "checkpoints/step-000400", "metric": "accuracy", "value": 0.9}))
    assert read(run).best_step == 400


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"it has no log\.jsonl"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("run.json", "{", r"run\.json is not JSON"),
        ("best.json", "[1]", r"best\.json holds a list"),
        ("served.jsonl", '{"a": 1}\n{', r"served\.jsonl line 2 is not JSON"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, text: str, says: str) -> None:
    run = make(tmp_path / "digits-1")
    (run / file).write_text(text)
    with pytest.raises(RunFolderError, match=says):
        read(run)
