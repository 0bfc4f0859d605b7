"""Marks of silver rows and what the contract does with near ones; rows whose decoding does not end."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from elasmo.config import Config, LimitsConfig
from elasmo.data.manifest import Snapshot, open_snapshot
from elasmo.ingest.bronze import write_bronze
from elasmo.ingest.gate_keeper import report_of
from elasmo.ingest.ingest import ingest
from elasmo.ingest.profiling import profile_snapshot
from elasmo.ingest.silver import write_silver
from elasmo.model.media import decode_image
from elasmo.sources import check
from elasmo.sources.contract import Contract, ContractError, SplitRule, TableSpec, load_contract
from elasmo.sources.quarantine import read_quarantine
from elasmo.sources.source import Row
from tests.content.test_language import SENTENCES
from tests.content.test_picture_hash import picture
from tests.ingest.test_silver import Rows
from tests.pets import CONTRACT, line, write_dataset

TALE = "Once upon a time there was an old cat that lived in a house by the river and slept all day long in the sun."
COLUMNS = {
    "key": {"type": "string"},
    "owner": {"type": "string"},
    "image": {"type": "image", "nullable": True},
    "note": {"type": "string", "nullable": True, "text": True},
}


def encoded(seed: int, quality: int = 90) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(seed)).save(file, "JPEG", quality=quality)
    return file.getvalue()


def tree(**changes: Any) -> dict[str, Any]:
    table = {"tables": {"photos": {"columns": COLUMNS}}, "splits": {"photos": {"concept": "owner", "heldout": ["eve"]}}}
    return {**CONTRACT, "source": "recipe", "media": {"image_pixels": 10_000}, **table, **changes}


def refine(lake: Path, rows: list[Row], **changes: Any) -> tuple[Snapshot, dict[str, str]]:
    """Silver of the rows, and the reasons of the refused ones by key."""
    contract = Contract.model_validate(tree(**changes))
    source = Rows([("photos", {"owner": "ann", **row}) for row in rows])
    source.tables, source.splits = dict[str, TableSpec](contract.tables), dict[str, SplitRule](contract.splits)
    source.landed = lambda table: {name: name == "image" for name in COLUMNS}  # type: ignore[method-assign]
    bronze = write_bronze(lake, contract, source, source.describe())
    silver = write_silver(lake, bronze, contract, source, LimitsConfig())
    refused = read_quarantine(lake, "pets", silver.details["quarantine"])
    return silver, {refusal.key: refusal.reason for refusal in refused}


def column(silver: Snapshot, name: str) -> dict[str, Any]:
    rows = silver.read_all("photos", ["key", name]).to_pylist()
    return {row["key"]: row[name] for row in rows}


ROWS: list[Row] = [
    {"key": "c", "image": encoded(1), "note": TALE},
    {"key": "d", "image": encoded(2), "note": TALE.replace("sun", "sunshine"), "owner": "eve"},
    {"key": "a", "image": encoded(1, quality=40), "note": None, "owner": "eve"},
    {"key": "b", "image": None, "note": SENTENCES["de"]},
]


def test_near_rows_languages_and_modality_are_columns(tmp_path: Path) -> None:
    silver, refused = refine(tmp_path, ROWS)
    assert not refused
    assert column(silver, "image_near") == {"a": None, "b": None, "c": "photos/a", "d": None}
    assert 0 <= column(silver, "image_near_distance")["c"] <= 4
    assert column(silver, "note_near") == {"a": None, "b": None, "c": None, "d": "photos/c"}
    assert 0 < column(silver, "note_near_distance")["d"] <= 0.2
    assert column(silver, "note_language") == {"a": None, "b": "de", "c": "en", "d": "en"}
    assert column(silver, "modality") == {"a": "image", "b": "text", "c": "image", "d": "image"}
    profile = profile_snapshot(silver).tables["photos"].mixes()
    assert profile["language"] == {"en": 2, "de": 1} and profile["modality"] == {"image": 3, "text": 1}


def test_the_order_of_rows_and_their_shards_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = []
    for number, rows in enumerate((ROWS, ROWS[::-1], ROWS[2:] + ROWS[:2])):
        monkeypatch.setattr("elasmo.ingest.bronze.SHARD_ROWS", 1 + number)
        silver, _ = refine(tmp_path / str(number), rows)
        names = [name["name"] for name in silver.manifest["tables"]["photos"]["schema"]]
        found = silver.read_all("photos", names).to_pylist()
        marks.append((sorted(found, key=lambda row: row["key"]), silver.details["near"]))
    assert marks[0] == marks[1] == marks[2]


def test_what_lies_near_across_the_split_is_counted_with_both_rows(tmp_path: Path) -> None:
    near = refine(tmp_path, ROWS)[0].details["near"]
    assert (near["image"]["heldout"], near["image"]["leaked"]) == (2, 1)
    assert near["image"]["leaks"][0][:2] == ["photos/c/image", "photos/a/image"]
    assert (near["text"]["compared"], near["text"]["leaked"]) == (2, 1)  # the German note is too short


def test_near_rows_are_dropped_or_refused_as_the_contract_says(tmp_path: Path) -> None:
    dropped, refused = refine(tmp_path / "drop", ROWS, near={"image": {"do": "drop"}})
    assert set(column(dropped, "key")) == {"a", "b", "d"} and not refused
    assert dropped.details["near"]["image"]["left_out"] == 1 and dropped.details["near"]["image"]["leaked"] == 0
    assert dropped.details["near"]["text"]["leaked"] == 0  # its training side went with the picture
    both = {"image": {"do": "quarantine"}, "text": {"do": "quarantine"}}
    kept, refused = refine(tmp_path / "refuse", ROWS, near=both)
    assert set(column(kept, "key")) == {"a", "b", "d"}
    assert refused == {"c": "image is near that of row 'photos/a'; near.image refuses it"}


def test_off_adds_no_column_and_yaml_says_it_without_quotes(tmp_path: Path) -> None:
    off = {"near": {"image": {"do": False}, "text": {"do": "off"}}, "languages": {"tag": False}}
    silver, _ = refine(tmp_path, ROWS, **off)
    names = [name["name"] for name in silver.manifest["tables"]["photos"]["schema"]]
    assert names == [*COLUMNS, "split", "concept", "modality"] and silver.details["near"] == {}


def with_column(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"tables": {"photos": {"columns": {**COLUMNS, name: spec}}}}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"near": {"image": {"distance": 40}}}, "near.image.distance"),
        ({"near": {"text": {"similarity": 0.2}}}, "near.text.similarity"),
        ({"timeouts": {"row_s": 0}}, "timeouts.row_s"),
        (
            {"tables": {"t": {"columns": {**COLUMNS, "image_near": {"type": "string"}}}}, "splits": {}},
            "'image_near', a",
        ),
        (
            {"tables": {"t": {"columns": {**COLUMNS, "n": {"type": "integer", "text": True}}}}, "splits": {}},
            "`text` is",
        ),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    folder = write_dataset(tmp_path / "pets", [], {}, tree(**change))
    with pytest.raises(ContractError, match=sentence):
        load_contract(folder)


def stuck_on(content: bytes, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    def decode(data: bytes, limits: LimitsConfig) -> Any:
        if data == content:
            act()
        return decode_image(data, limits)

    monkeypatch.setattr(check, "decode_image", decode)


def test_a_row_whose_decoder_sleeps_for_ever_is_refused_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA/Megatron-Energon#119: a sample that a decoder never comes back from holds up all others for good."""
    rows = [{"key": f"k{number:03d}", "image": encoded(number)} for number in range(150)]
    stuck_on(rows[70]["image"], monkeypatch, lambda: time.sleep(3600))
    begun = time.monotonic()
    silver, refused = refine(tmp_path, rows, timeouts={"row_s": 1.0})
    assert time.monotonic() - begun < 30
    assert refused == {"k070": "decoding it took more than 1 s"}
    assert set(column(silver, "key")) == {f"k{number:03d}" for number in range(150)} - {"k070"}


def test_checking_in_this_process_gives_the_same_snapshot(tmp_path: Path) -> None:
    """What a guarded process brings back is what the checks say here; only the contract's hash differs."""
    guarded, _ = refine(tmp_path / "guarded", ROWS)
    plain, _ = refine(tmp_path / "plain", ROWS, timeouts={"row_s": None})
    assert plain.read_all("photos").equals(guarded.read_all("photos")) and plain.details == guarded.details


def test_a_held_out_picture_saved_again_as_a_training_one_shows_in_the_gate(tmp_path: Path, config: Config) -> None:
    """Media of `files` have no split of their own: that of the conversations that point at them counts."""
    media = {f"media/{number}.jpg": encoded(number) for number in range(8)} | {"media/again.jpg": encoded(3, 60)}
    rows = [
        line(f"row-{name}", {"image": name}, split="heldout" if name in ("media/3.jpg", "media/4.jpg") else "train")
        for name in media
    ]
    contract = {"media": {"image_pixels": 10_000}}
    folder = write_dataset(tmp_path / "pets", [*rows], media, contract)
    silver = open_snapshot(Path(config.data.lake), "pets", "silver", ingest(config, folder).layers[1].snapshot)
    report = report_of(silver)
    assert report is not None
    (check_,) = [found for found in report.checks if found.name == "near leakage" and found.subject == "image"]
    assert (check_.verdict, check_.numbers["share"]) == ("warn", 0.5)  # too few rows to block
    assert "images/media/3.jpg/data and images/media/again.jpg/data" in check_.sentence
