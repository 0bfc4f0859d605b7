"""What ingestion leaves in the ledger."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elasmo.config import Config
from elasmo.ingest import silver_rows
from elasmo.ingest.gate import GateError
from elasmo.ingest.ingest import ingest
from elasmo.ingest.stage_recorder import folder_bytes
from elasmo.sources.source import SourceError
from elasmo.stages.stage_run import StageRun, read_ledger
from tests.ingest.test_gate_keeper import farm
from tests.pets import good_rows, line, write_dataset
from tests.sources.twelve import contract, ingested, twelve

STAGES = [
    "copy", "bronze", "profile.bronze", "silver", "profile.silver", "gate", "gold", "profile.gold",
]  # fmt: skip


def ledger(config: Config, dataset: str) -> list[StageRun]:
    return read_ledger(Path(config.data.lake), dataset)


def test_every_stage_is_recorded_with_its_sizes(tmp_path: Path, config: Config) -> None:
    rows, media = good_rows()
    folder = write_dataset(tmp_path / "pets", [*rows, line("bad", {"image": "media/gone.png"}, split="train")], media)
    result = ingest(config, folder)
    runs = ledger(config, "pets")
    assert [run.stage for run in runs] == STAGES
    assert {run.outcome for run in runs} == {"done"} and not any(run.reused or run.synthetic for run in runs)
    by_stage = {run.stage: run for run in runs}
    bronze, made, gold = result.layers
    assert by_stage["bronze"].bytes_in == folder_bytes(folder) == sum(p.stat().st_size for p in folder.rglob("*.*"))
    assert (by_stage["silver"].rows_in, by_stage["silver"].bytes_in) == (sum(bronze.rows.values()), bronze.bytes)
    assert (by_stage["gold"].rows_in, by_stage["gold"].bytes_out) == (sum(made.rows.values()), gold.bytes)
    assert sum(sum(run.quarantined.values()) for run in runs) == len(result.refused) == 2
    assert {**by_stage["silver"].quarantined, **by_stage["gold"].quarantined} == dict(result.reasons)
    assert by_stage["gate"].verdict == result.gate.verdict
    assert [part.name for part in by_stage["profile.silver"].parts] == [
        "images-00000.parquet", "audio-00000.parquet", "rows-00000.parquet"
    ]  # fmt: skip
    assert {part.outcome for run in runs for part in run.parts} == {"done"}


def test_what_stood_before_is_recorded_as_reused(pets: Path, config: Config) -> None:
    ingest(config, pets)
    ingest(config, pets, synthetic=True)
    again = ledger(config, "pets")[len(STAGES) :]
    assert [run.stage for run in again if run.reused] == STAGES[1:]
    assert all(run.synthetic for run in again)


def test_a_damaged_file_is_named_and_the_next_attempts_are_retries(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    contract(folder, {"format": "csv", "path": "*.csv"})
    header = ",".join(twelve()[0])
    (folder / "a.csv").write_text(header + "\n")
    (folder / "b.csv").write_bytes(b"key,key\n")
    for _ in range(2):
        with pytest.raises(SourceError):
            ingested(folder)
    runs = read_ledger(tmp_path / "lake", "pets")
    assert [(run.stage, run.outcome, run.broke_in, run.retries) for run in runs if run.outcome != "done"] == [
        ("copy", "failed", "b.csv", 0),
        ("copy", "failed", "b.csv", 1),
    ]
    assert runs[-1].error is not None and "column 'key' is there twice" in runs[-1].error


def test_a_blocked_snapshot_is_a_failure_of_the_gate(tmp_path: Path, config: Config) -> None:
    ingest(config, farm(tmp_path / "farm"))
    with pytest.raises(GateError):
        ingest(config, farm(tmp_path / "farm", coat="white"))
    gate = ledger(config, "farm")[-1]
    assert (gate.stage, gate.outcome, gate.verdict) == ("gate", "failed", "block")
    assert gate.error is not None and "is blocked and no gold is made" in gate.error


def test_an_ingestion_that_is_killed_shows_where(pets: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def deadly(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(silver_rows, "_refuse_duplicate", deadly)
            ingest(config, pets)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    last = ledger(config, "pets")[-1]
    assert (last.stage, last.outcome, last.broke_in) == ("silver", "killed", "images-00000.parquet")
    ingest(config, pets)
    assert [run.retries for run in ledger(config, "pets") if run.stage == "silver"] == [0, 1]


def test_a_folder_that_cannot_be_read_has_no_size(tmp_path: Path) -> None:
    assert folder_bytes(tmp_path / "gone") is None
