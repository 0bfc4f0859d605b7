"""Repeats and leaks of silver, counted exactly."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from elasmo.config import Config
from elasmo.data.manifest import SnapshotWriter, open_snapshot
from elasmo.ingest.ingest import ingest
from elasmo.ingest.repeat import find_repeats
from elasmo.sources.contract import Column, TableSpec, load_contract
from elasmo.sources.files import FilesSource
from tests.pets import good_rows, line, png, write_dataset


def test_a_medium_of_both_splits_is_named_with_both_places(tmp_path: Path, config: Config) -> None:
    rows, media = good_rows()
    leak = line("leak", {"image": "media/copy.png"}, answer="x", split="train")
    folder = write_dataset(tmp_path / "pets", [*rows, leak], {**media, "media/copy.png": png(20)})
    silver = open_snapshot(Path(config.data.lake), "pets", "silver", ingest(config, folder).layers[1].snapshot)
    repeats = find_repeats(silver, FilesSource(folder, load_contract(folder)).tables)
    assert repeats.leaked == (("images/media/copy.png", "images/media/20.png"),)
    assert repeats.values == {"images.data": (13, 1), "audio.data": (12, 0), "rows.messages": (25, 0)}
    assert repeats.media == 24 and repeats.concepts == {"rows": (25, ())}


def test_a_concept_of_both_splits_is_found_shard_by_shard(tmp_path: Path) -> None:
    string = Column(type="string")
    spec = TableSpec(columns={"key": string, "png": Column(type="image", nullable=True)})
    kept = {"key": ["a", "b"], "concept": ["cat", "cat"], "png": [b"same", None]}
    with SnapshotWriter(tmp_path, "pets", "silver") as writer:
        for split in ("train", "heldout"):
            writer.add("scans", pa.table({**kept, "split": [split, split]}))
    repeats = find_repeats(writer.snapshot, {"scans": spec})
    assert repeats.concepts == {"scans": (1, ("cat",))}
    assert repeats.values == {"scans.png": (2, 1)} and repeats.leaked == (("scans/a", "scans/a"),)
