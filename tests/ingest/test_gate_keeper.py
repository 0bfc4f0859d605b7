"""Ingestion at the gate: a drift stops it before gold, a person accepts, what did not change passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasmo.config import Config
from elasmo.data.manifest import latest, open_snapshot
from elasmo.ingest.gate import GateError
from elasmo.ingest.gate_keeper import gate_path, report_of
from elasmo.ingest.ingest import IngestResult, ingest
from tests.pets import line, png, write_dataset


def farm(folder: Path, count: int = 120, **changed: Any) -> Path:
    """A dataset of images and records; `changed` sets the label, the coat or the size of later ones."""
    rows, media = [], {}
    for number in range(count):
        coat = changed.get("coat", "black" if number % 4 else "white")
        record = {"age": number % 30, "coat": coat}
        segments: list[dict[str, Any]] = [{"table": record}]
        if number % 2:
            media[f"media/{number}.png"] = png(number, changed.get("size", 8 + number % 3))
            segments = [{"image": f"media/{number}.png"}]
        answer = changed.get("label", f"answer {number % 3}")
        question = {"text": f"number {number}"}
        rows.append(line(f"row-{number}", *segments, question, answer=answer, concept=f"c{number}"))
    return write_dataset(folder, rows, media)  # type: ignore[arg-type]


def silver_of(result: IngestResult) -> str:
    return result.layers[1].snapshot


@pytest.fixture
def first(tmp_path: Path, config: Config) -> IngestResult:
    return ingest(config, farm(tmp_path / "pets"))


def test_a_drifted_dataset_is_blocked_with_its_numbers_and_no_gold_is_written(
    tmp_path: Path, config: Config, first: IngestResult
) -> None:
    farm(tmp_path / "pets", label="answer 1", size=12, coat=None)
    golds = sorted(path.name for path in (first.lake / "pets" / "gold").iterdir())
    with pytest.raises(GateError) as raised:
        ingest(config, tmp_path / "pets")
    told = str(raised.value)
    assert "rows.messages.answer drifted" in told and "'answer 1' was 33.3 % and is 100 %" in told
    assert "images.data (width) drifted" in told and "its mean was 9 and is 12" in told
    assert "rows.messages.table.coat had 0.0 % nulls and has 100 %" in told
    assert "--accept" in told and "Traceback" not in told
    assert sorted(path.name for path in (first.lake / "pets" / "gold").iterdir()) == golds
    assert latest(first.lake, "pets", "silver") == silver_of(first)
    assert latest(first.lake, "pets", "gold") == first.gold
    with pytest.raises(GateError):  # blocked stays blocked: it is held against the last one that passed, not itself
        ingest(config, tmp_path / "pets")


def test_an_accepted_drift_becomes_gold_is_recorded_and_stays_accepted(
    tmp_path: Path, config: Config, first: IngestResult
) -> None:
    farm(tmp_path / "pets", label="answer 1")
    second = ingest(config, tmp_path / "pets", accept=True)
    assert second.gold != first.gold and second.gate.verdict == "block"
    stored = report_of(open_snapshot(second.lake, "pets", "silver", silver_of(second)))
    assert stored == second.gate and stored.accepted is not None and " by " in stored.accepted
    assert stored.predecessor == silver_of(first)
    third = ingest(config, tmp_path / "pets")
    assert third.gate == stored and all(layer.reused for layer in third.layers)


def test_nothing_changed_and_a_few_rows_more_pass(tmp_path: Path, config: Config, first: IngestResult) -> None:
    assert first.gate.verdict == "pass" and first.gate.predecessor is None
    assert ingest(config, tmp_path / "pets").gate == first.gate
    grown = ingest(config, farm(tmp_path / "pets", 126))
    assert grown.gate.verdict == "pass" and grown.gate.predecessor == silver_of(first)


def test_accepting_what_passes_records_nothing(tmp_path: Path, config: Config, first: IngestResult) -> None:
    assert ingest(config, farm(tmp_path / "pets", 124), accept=True).gate.accepted is None


def test_a_lake_without_profiles_gets_them_and_a_damaged_predecessor_is_told(
    tmp_path: Path, config: Config, first: IngestResult
) -> None:
    silver = open_snapshot(first.lake, "pets", "silver", silver_of(first))
    for path in gate_path(silver).parent.iterdir():
        path.unlink()
    assert ingest(config, farm(tmp_path / "pets", 122)).gate.predecessor == silver.id
    for path in gate_path(silver).parent.iterdir():
        path.write_text("{")
    last = open_snapshot(first.lake, "pets", "silver", latest(first.lake, "pets", "silver") or "")
    (last.path / "rows-00000.parquet").write_bytes(b"")
    report = ingest(config, farm(tmp_path / "pets", 124)).gate
    assert report.predecessor is None and "differs from its manifest" in report.sentences("warn")[0]


def test_the_contract_s_tables_are_the_source_s(first: IngestResult) -> None:
    subjects = {check.subject for check in first.gate.checks if check.name == "contract"}
    assert {"rows.messages", "rows.messages.table.age", "images.data"} <= subjects
