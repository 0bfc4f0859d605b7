"""Back-tracing: the rows a step names are those its receipt proves, down to files; damage and absence are said."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from elasmo.config import Config, dump, load
from elasmo.data.stream import make_plan, open_gold
from elasmo.ingest.ingest import ingest
from elasmo.train.trace import TraceError, find_event, trace_evaluation, trace_step
from tests.data.test_gold_mixture import two  # noqa: F401
from tests.pets import config, pets  # noqa: F401

STEPS = 5


def write_run(folder: Path, of: Config) -> Path:
    """A run folder with the log of a run that read what was planned."""
    folder.mkdir()
    gold = open_gold(of)
    (folder / "config.yaml").write_text(dump(of.model_copy(update={"data": gold.pinned(of.data)})))
    plan = make_plan(of, gold)
    step = {"event": "step", "attempt": 1, "world": 2, "loss": 0.5}
    lines = [{**step, "step": n, "receipt": plan.receipt(n - 1)} for n in range(1, STEPS + 1)]
    lines.append({"event": "eval", "step": STEPS, "loss": 0.25, "rows": 4})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def run(tmp_path: Path, pets: Path, config: Config) -> Path:  # noqa: F811
    ingest(config, pets)
    sizes = ["train.global_batch=8", "train.micro_batch=2", f"data.dataset={pets}", f"data.lake={config.data.lake}"]
    return write_run(tmp_path / "run", load(None, sizes, {}))


def test_a_step_is_traced_to_the_files_it_was_made_of(run: Path, pets: Path) -> None:  # noqa: F811
    found = trace_step(run, 3)
    assert found.proven
    config = load(run / "config.yaml", env={})  # noqa: F811
    slots = make_plan(config, open_gold(config)).slots(2)
    assert [(row.slot, row.gold.row_id) for row in found.rows] == [(s.slot, r) for s in slots for r in s.row_ids]
    media = 0
    for row in found.rows:
        line, *files = row.sources
        number = int(row.gold.key.removeprefix("row-"))
        assert (line.name, line.origin) == (f"rows/rows.jsonl:{number + 1}", "rows.jsonl")
        for source in row.sources:
            assert source.file is not None and source.row is not None and source.origin is not None
            stored = pq.read_table(Path(config.data.lake) / source.file, columns=["key"]).column("key")
            assert stored[source.row].as_py() == source.name.partition("/")[2]
            assert source.sha256 == hashlib.sha256((pets / source.origin).read_bytes()).hexdigest()
        assert {file.origin for file in files} <= {f"media/{number}.png", f"media/{number}.wav"}
        media += len(files)
    assert media > 0
    (chain,) = found.lineage
    assert [node.layer for node in chain.nodes] == ["gold", "silver", "bronze"]


def test_rows_that_the_receipt_does_not_prove_are_said_to_be_unproven(run: Path) -> None:
    log = run / "log.jsonl"
    log.write_text(log.read_text().replace(trace_step(run, 3).receipt or "", "0" * 24))
    assert not trace_step(run, 3).proven
    assert trace_step(run, 2).proven


def test_an_evaluation_is_traced_to_every_held_out_row(run: Path) -> None:
    found = trace_evaluation(run, STEPS)
    assert found.event["loss"] == 0.25
    assert sorted(row.gold.key for row in found.rows) == [f"row-{n}" for n in range(20, 24)]
    assert {row.gold.split for row in found.rows} == {"heldout"}


def test_a_step_of_a_mixture_names_the_dataset_of_each_row(two: Config, tmp_path: Path) -> None:  # noqa: F811
    found = trace_step(write_run(tmp_path / "run", two), 2)
    assert found.proven
    assert {row.dataset for row in found.rows} == {"pets", "strays"} == {chain.dataset for chain in found.lineage}


@pytest.mark.parametrize("step", [0, STEPS + 1, 10**9])
def test_a_step_that_was_never_committed_is_refused(run: Path, step: int) -> None:
    with pytest.raises(TraceError, match=f"has no committed step {step};"):
        trace_step(run, step)


def test_the_last_event_of_a_step_is_found_in_a_long_log_without_parsing_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.jsonl"
    with log.open("w") as file:
        for step in range(1, 100_001):
            file.write(f'{{"time": 1.0, "event": "step", "attempt": 1, "step": {step}, "receipt": "a{step}"}}\n')
        file.write('{"event": "resize", "restored_step": 70, "step": 77}\n')
        file.write('{"event": "step", "attempt": 2, "step": 77, "receipt": "second", "note": "\\"step\\": 77,"}\n')
        file.write('{"event": "step", "attempt": 2, "step": 78, "rec')  # cut off
    parsed = []
    whole = json.loads
    monkeypatch.setattr("elasmo.train.trace.json.loads", lambda text: (parsed.append(1), whole(text))[1])
    assert (find_event(log, "step", 77) or {})["receipt"] == "second"
    assert (find_event(log, "step", 78) or {})["receipt"] == "a78"
    assert (find_event(log, "step", 7) or {})["receipt"] == "a7"
    assert find_event(log, "step", 100_001) is None
    assert find_event(log, "eval", 77) is None
    assert find_event(tmp_path / "absent.jsonl", "step", 1) is None
    assert len(parsed) < 12
