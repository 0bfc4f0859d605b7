"""Ingestion end to end on a small folder: bad rows are named and left out, unchanged input is not redone."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasmo.config import Config, load
from elasmo.data.gold import Gold, GoldError
from elasmo.data.manifest import open_snapshot
from elasmo.ingest.ingest import IngestResult, ingest
from elasmo.sources.contract import ContractError
from elasmo.sources.files import FilesSource
from elasmo.sources.source import SourceError
from tests.pets import good_rows, line, png, wav, write_dataset


def ids(result: IngestResult) -> list[str]:
    return [layer.snapshot for layer in result.layers]


def test_every_fit_row_reaches_gold_once(pets: Path, config: Config) -> None:
    result = ingest(config, pets)
    assert result.refused == ()
    assert result.counts["bronze"] == {"images": 12, "audio": 12, "rows": 24}
    assert result.modalities == {
        "train": {"audio": 5, "image": 5, "image+audio": 5, "table": 5},
        "heldout": {"audio": 1, "image": 1, "image+audio": 1, "table": 1},
    }
    gold = Gold.open(config.data.lake, pets)
    rows = gold.read(range(24))
    assert sorted(row.key for row in rows) == sorted(f"row-{n}" for n in range(24))
    assert {row.split for row in rows[:20]} == {"train"} and {row.split for row in rows[20:]} == {"heldout"}


def bad_rows() -> tuple[list[dict[str, Any] | str], dict[str, bytes], dict[str, str]]:
    """Rows that must be refused, their media, and (bronze key or sample -> a piece of the reason)."""
    image, keys = {"image": "media/ok.png"}, {"split": "train"}
    cases: list[tuple[dict[str, Any] | str, str]] = [
        (line("corrupt", {"image": "bad/corrupt.png"}, **keys), "images/bad/corrupt.png is not in silver"),
        (line("silent", {"audio": "bad/empty.wav"}, **keys), "audio/bad/empty.wav is not in silver"),
        (line("rate", {"audio": "bad/rate.wav"}, **keys), "audio/bad/rate.wav is not in silver"),
        (line("gone", {"image": "bad/gone.png"}, **keys), "images/bad/gone.png is not in silver"),
        (line("old", {"table": {"age": 31}}, **keys), "record field age is 31; it must be at least 0 and at most 30"),
        (line("pink", {"table": {"age": 1, "coat": "pink"}}, **keys), "it must be one of black, white"),
        ('{"id": "cut", "messages": [', "the line is not valid JSON"),
        ("[1, 2]", "must hold an object"),
        ({"id": "none"}, "messages is missing"),
        ({**line("typo", image), "lable": 1}, "unknown key 'lable'"),
        (line("middle", image, split="test"), "it must be one of train, heldout"),
        (line("outside", {"image": "../ok.png"}, **keys), "leaves the dataset folder"),
        (line("row-0", image, answer="fresh", **keys), "id is the same as in row 'rows.jsonl:1'"),
        (line("twin", {"image": "media/0.png"}, answer="answer 0", **keys), "messages is the same as in row"),
        (line("leak", {"image": "media/copy.png"}, answer="x", **keys), "also in held-out sample 'row-20'"),
        (line("sibling", image, answer="y", split="train", concept="pet-21"), "'pet-21' is declared train here"),
        (line("long", {"text": " ".join(map(str, range(100, 400)))}, **keys), "decoder.max_seq"),
    ]
    media = {
        "media/ok.png": png(99),
        "media/copy.png": png(20),
        "bad/corrupt.png": png(0)[:80],
        "bad/empty.wav": b"",
        "bad/rate.wav": wav(0, rate=8_000),
    }
    reasons = {row["id"] if isinstance(row, dict) else row[:6]: reason for row, reason in cases}
    return [row for row, _ in cases], media, reasons


def test_every_kind_of_bad_row_is_quarantined_with_its_reason_and_the_rest_is_kept(
    tmp_path: Path, config: Config
) -> None:
    rows, media = good_rows()
    bad, bad_media, reasons = bad_rows()
    result = ingest(config, write_dataset(tmp_path / "pets", [*rows, *bad], {**media, **bad_media}))
    assert sum(sum(counts.values()) for counts in result.modalities.values()) == 24

    lines = (tmp_path / "pets" / "rows.jsonl").read_text().splitlines()
    found: dict[str, str] = {}
    for refusal in result.refused:
        name = refusal.key
        if refusal.table == "rows":
            text = lines[int(refusal.key.removeprefix("rows.jsonl:")) - 1]
            try:
                name = json.loads(text)["id"]
            except (ValueError, TypeError):
                name = text[:6]
        found[name] = refusal.reason
    for name, reason in reasons.items():
        assert reason in found.pop(name), name
    assert sorted(found) == ["bad/corrupt.png", "bad/empty.wav", "bad/gone.png", "bad/rate.wav"]
    assert "0 bytes" in found["bad/empty.wav"] and "8000" in found["bad/rate.wav"]
    assert "does not exist" in found["bad/gone.png"]


def test_the_quarantine_lies_in_the_lake_under_the_step_that_refused(tmp_path: Path, config: Config) -> None:
    rows, media = good_rows()
    result = ingest(config, write_dataset(tmp_path / "pets", [*rows, "{"], media))
    silver = open_snapshot(result.lake, "pets", "silver", result.layers[1].snapshot)
    quarantine = open_snapshot(result.lake, "pets", "quarantine", silver.details["quarantine"])
    assert quarantine.read_all("rows").column("key").to_pylist() == ["rows.jsonl:25"]
    assert quarantine.manifest["parents"][0]["id"] == result.layers[0].snapshot


def test_unchanged_input_is_verified_and_not_redone(pets: Path, config: Config) -> None:
    first, second = ingest(config, pets), ingest(config, pets)
    assert ids(first) == ids(second)
    assert not any(layer.reused for layer in first.layers) and all(layer.reused for layer in second.layers)


def test_the_same_folder_gives_the_same_ids_in_another_lake(pets: Path, config: Config, tmp_path: Path) -> None:
    other = load(overrides=[f"data.lake={tmp_path / 'other'}", "data.vocab_size=300"], env={})
    assert ids(ingest(config, pets)) == ids(ingest(other, pets))


def test_a_changed_medium_changes_every_layer(pets: Path, config: Config) -> None:
    first = ingest(config, pets)
    (pets / "media/0.png").write_bytes(png(1234))
    assert not set(ids(first)) & set(ids(ingest(config, pets)))


def test_another_patch_size_redoes_gold_alone(pets: Path, config: Config) -> None:
    first = ingest(config, pets)
    model = config.model.model_copy(update={"vision": config.model.vision.model_copy(update={"patch": 2})})
    changed = config.model_copy(update={"model": model})
    second = ingest(changed, pets)
    assert [layer.reused for layer in second.layers] == [True, True, False]
    assert second.gold != first.gold
    assert Gold.open(config.data.lake, pets).snapshot == second.gold


def test_a_damaged_layer_is_made_again(pets: Path, config: Config) -> None:
    first = ingest(config, pets)
    shard = next((first.lake / "pets" / "silver" / ids(first)[1]).glob("images-*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1])
    second = ingest(config, pets)
    assert [layer.reused for layer in second.layers] == [True, False, True]
    assert ids(second) == ids(first)


def test_audio_at_a_rate_the_model_does_not_take_is_refused_before_a_row_is_read(pets: Path, config: Config) -> None:
    model = config.model.model_copy(update={"audio": config.model.audio.model_copy(update={"sample_rate": 16_000})})
    with pytest.raises(GoldError, match=r"set model\.audio\.sample_rate=22050"):
        ingest(config.model_copy(update={"model": model}), pets)


def test_a_dataset_without_a_training_row_is_refused(tmp_path: Path, config: Config) -> None:
    folder = write_dataset(tmp_path / "pets", [line("one", split="heldout")], {})
    with pytest.raises(GoldError, match="no training sample left"):
        ingest(config, folder)


def test_a_folder_without_rows_or_contract_is_refused(pets: Path, config: Config, tmp_path: Path) -> None:
    (pets / "rows.jsonl").unlink()
    with pytest.raises(SourceError, match=r"rows\.jsonl does not exist"):
        ingest(config, pets)
    shutil.rmtree(pets)
    pets.mkdir()
    with pytest.raises(ContractError, match=r"has no contract\.yaml"):
        ingest(config, pets)


def test_progress_tells_of_each_layer_before_and_after(pets: Path, config: Config) -> None:
    told: list[tuple[str, bool]] = []
    ingest(config, pets, lambda layer, result: told.append((layer, result is not None)))
    assert told == [(layer, done) for layer in ("bronze", "silver", "gold") for done in (False, True)]


def test_texts_and_times_reach_gold_typed_and_what_does_not_fit_is_quarantined(tmp_path: Path, config: Config) -> None:
    fields = {"note": {"type": "text"}, "seen": {"type": "time", "nullable": True}}
    records: list[dict[str, Any]] = [
        {"note": "limps", "seen": "2024-03-01"},
        {"note": "", "seen": "2024-03-02T12:00"},
        {"note": "limps, and bites"},
        {"note": "x", "seen": "yesterday"},
        {"note": "y" * 300},
    ]
    rows: list[dict[str, Any] | str] = [
        line(f"r{n}", {"table": record}, split="train") for n, record in enumerate(records)
    ]
    folder = write_dataset(tmp_path / "notes", rows, {}, {"record": fields})
    result = ingest(config, folder)
    assert {refusal.key: refusal.reason for refusal in result.refused}.keys() == {"rows.jsonl:4", "r4"}
    gold = Gold.open(config.data.lake, folder)
    note, seen = gold.processor().table_fields
    assert (note.kind, seen.kind) == ("text", "time")
    assert (seen.mean, seen.std) == pytest.approx((19_783.75, 0.75))
    read = {row.key: row for row in gold.read(range(3))}
    assert read["r1"].record == records[1]
    assert read["r1"].encoded.cell_values.tolist() == [0.0, 19_784.0]
    assert read["r1"].encoded.cell_details.tolist()[-1] == 43_200
    assert read["r2"].encoded.cell_categories.tolist() == [0, -1]


def test_a_recipe_that_blocks_for_ever_ends_in_a_sentence_that_names_its_last_row(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA/Megatron-Energon#119: a source that never gives its next sample."""
    rows, media = good_rows()
    folder = write_dataset(tmp_path / "pets", rows, media, {"timeouts": {"source_s": 0.3}})
    ingest(config, folder)
    standing = sorted(path.name for path in Path(config.data.lake).glob("pets/*/*") if path.is_dir())
    (folder / "rows.jsonl").write_text((folder / "rows.jsonl").read_text() + "\n")
    free, lines = threading.Event(), FilesSource.lines

    def blocked(self: FilesSource) -> Iterator[tuple[int, str]]:
        for number, text in lines(self):
            if number == 4 and threading.current_thread() is not threading.main_thread():
                free.wait(60)
            yield number, text

    monkeypatch.setattr(FilesSource, "lines", blocked)
    monkeypatch.setattr(FilesSource, "media", lambda self: [])
    began = time.monotonic()
    with pytest.raises(
        SourceError, match=r"^pets: its source .* did not give the row after rows/rows\.jsonl:3 within 0"
    ):
        ingest(config, folder)
    free.set()
    assert time.monotonic() - began < 20
    assert sorted(path.name for path in Path(config.data.lake).glob("pets/*/*") if path.is_dir()) == standing
