"""The run folder: the log is read whole lines at a time, and receipts are held against the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elasmo.config import Config, load
from elasmo.data.plan import StepPlan
from elasmo.data.stream import open_gold
from elasmo.ingest.ingest import ingest
from elasmo.model.stores import StoreError
from elasmo.train.run_folder import LogReader, check_receipts, checkpoint_root, create, events, write_summary
from tests.data.test_plan import make_index
from tests.pets import config, pets  # noqa: F401


def write(folder: Path, *lines: object) -> None:
    with (folder / "log.jsonl").open("a") as log:
        log.writelines(json.dumps(line) + "\n" for line in lines)


def test_a_growing_log_is_read_once_and_never_a_half_line(tmp_path: Path) -> None:
    reader = LogReader(tmp_path)
    assert reader.read() == []
    write(tmp_path, {"event": "a"})
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"event": "b", "x": "é')
        log.flush()
        assert reader.read() == [{"event": "a"}]
        assert reader.read() == []
        log.write('"}\n')
    assert reader.read() == [{"event": "b", "x": "é"}]
    assert events(tmp_path, "b") == [{"event": "b", "x": "é"}]


def test_receipts_tell_missing_and_differing_steps_and_the_last_attempt_counts(tmp_path: Path) -> None:
    plan = StepPlan(make_index(90), 0, 12, 4)
    right = [{"event": "step", "step": step, "receipt": plan.receipt(step - 1)} for step in range(1, 6)]
    write(tmp_path, {**right[0], "receipt": "of a dead attempt"}, *right)
    assert check_receipts(tmp_path, plan, 5).match
    beyond = check_receipts(tmp_path, plan, 7)
    assert (beyond.missing, beyond.differing, beyond.match) == ((6, 7), (), False)
    write(tmp_path, {**right[2], "receipt": right[3]["receipt"]})
    assert check_receipts(tmp_path, plan, 5).differing == (3,)


def test_a_substituted_row_is_proven_by_what_the_step_says_of_it(tmp_path: Path) -> None:
    plan = StepPlan(make_index(90), 0, 12, 4)
    planned = plan.slots(0)[1].row_ids[0]
    swap = {"slot": 1, "planned": planned, "read": 9999, "reason": "truncated"}
    event = {"event": "step", "step": 1, "receipt": plan.receipt(0, {planned: 9999})}
    write(tmp_path, {**event, "substituted": [swap]})
    check = check_receipts(tmp_path, plan, 1)
    assert check.match and check.substituted == 1
    write(tmp_path, event)  # says nothing of it
    assert check_receipts(tmp_path, plan, 1).differing == (1,)


def test_the_summary_grows(tmp_path: Path) -> None:
    write_summary(tmp_path, status="running", run="r")
    write_summary(tmp_path, status="succeeded")
    assert json.loads((tmp_path / "run.json").read_text()) == {"status": "succeeded", "run": "r"}


def test_a_run_keeps_its_checkpoints_where_it_began(tmp_path: Path, pets: Path, config: Config) -> None:  # noqa: F811
    ingest(config, pets)
    of = load(None, [f"data.dataset={pets}", f"data.lake={config.data.lake}"], {})
    gold = open_gold(of)

    def begun(name: str, where: str | None) -> str:
        changed = of.train.model_copy(update={"storage": str(tmp_path), "checkpoint_storage": where})
        return checkpoint_root(create(of.model_copy(update={"train": changed}), name, gold)).url

    assert begun("local", None) == str(tmp_path / "local" / "checkpoints")
    assert begun("away", "memory://bucket/") == "memory:///bucket/away"
    # Taken up without the key, the run finds them; with another place it would begin again at step 0 without a word.
    assert begun("away", None) == begun("away", "memory://bucket/") == "memory:///bucket/away"
    for name, where in (("away", "memory://other"), ("local", "memory://bucket")):
        with pytest.raises(StoreError, match=rf"{where}, but run {name} keeps its checkpoints in .*; leave the key"):
            begun(name, where)
