"""Snapshots: content-addressed, whole or absent, refused when a byte differs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from elasmo.data.manifest import (
    Snapshot,
    SnapshotError,
    SnapshotWriter,
    latest,
    mark_latest,
    open_snapshot,
    recall,
    remember,
)

ROWS = pa.table({"key": ["a", "b"], "data": [b"\0\1", None]})


def write(lake: Path, rows: pa.Table = ROWS) -> Snapshot:
    with SnapshotWriter(lake, "pets", "bronze", details={"note": "x"}) as writer:
        writer.add("rows", rows)
    return writer.snapshot


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_same_content_has_the_same_id_in_any_lake(tmp_path: Path) -> None:
    first, second = write(tmp_path / "one"), write(tmp_path / "two")
    assert first.id == second.id and len(first.id) == 16
    assert write(tmp_path / "one", ROWS.slice(1)).id != first.id


def test_the_id_is_the_sha256_of_the_canonical_manifest(tmp_path: Path) -> None:
    snapshot = write(tmp_path)
    manifest = json.loads((snapshot.path / "manifest.json").read_text())
    hashed = {key: manifest[key] for key in ("format", "layer", "dataset", "parents", "tables", "files", "details")}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == snapshot.id
    shard = manifest["tables"]["rows"]["shards"][0]
    content = (snapshot.path / shard["file"]).read_bytes()
    assert (shard["bytes"], shard["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


def test_rows_come_back_in_order_over_shards(tmp_path: Path) -> None:
    with SnapshotWriter(tmp_path, "pets", "bronze") as writer:
        for start in range(3):
            writer.add("rows", pa.table({"n": [2 * start, 2 * start + 1]}))
    assert writer.snapshot.read_all("rows").column("n").to_pylist() == list(range(6))
    assert writer.snapshot.tables() == {"rows": 6}


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), SnapshotWriter(tmp_path, "pets", "bronze") as writer:
        writer.add("rows", ROWS)
        raise RuntimeError
    assert list((tmp_path / "pets" / "bronze").iterdir()) == []


def test_what_a_dead_writer_left_is_swept_and_a_living_one_is_not_disturbed(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    layer = tmp_path / "pets" / "bronze"
    dead, living = (layer / f".writing-{socket.gethostname()}-{pid}" for pid in (process.pid, os.getppid()))
    for folder in (dead, living):
        folder.mkdir(parents=True)
    snapshot = write(tmp_path)
    assert sorted(layer.iterdir()) == sorted([living, snapshot.path])


def test_a_snapshot_that_appears_while_it_is_written_is_kept(tmp_path: Path) -> None:
    with SnapshotWriter(tmp_path, "pets", "bronze", details={"note": "x"}) as writer:
        writer.add("rows", ROWS)
        folder = writer.folder
        other = write(tmp_path / "other")
        shutil.copytree(other.path, tmp_path / "pets" / "bronze" / other.id)
    assert writer.snapshot.id == other.id and not folder.exists()


def test_a_flipped_bit_in_a_shard_is_refused(tmp_path: Path) -> None:
    snapshot = write(tmp_path)
    flip(snapshot.path / "rows-00000.parquet")
    with pytest.raises(SnapshotError, match=r"rows-00000\.parquet differs from its manifest"):
        snapshot.read_all("rows")


def test_an_edited_manifest_is_refused(tmp_path: Path) -> None:
    snapshot = write(tmp_path)
    path = snapshot.path / "manifest.json"
    path.write_text(path.read_text().replace('"rows": 2', '"rows": 3'))
    with pytest.raises(SnapshotError, match="is damaged"):
        open_snapshot(tmp_path, "pets", "bronze", snapshot.id)


def test_writing_over_a_damaged_snapshot_mends_it(tmp_path: Path) -> None:
    snapshot = write(tmp_path)
    flip(snapshot.path / "rows-00000.parquet")
    assert write(tmp_path).id == snapshot.id
    assert snapshot.read_all("rows").equals(ROWS)


def test_an_input_is_recalled_only_while_its_snapshot_is_intact(tmp_path: Path) -> None:
    snapshot = write(tmp_path)
    remember(snapshot, "abc")
    recalled = recall(tmp_path, "pets", "bronze", "abc")
    assert recalled is not None and recalled.id == snapshot.id
    assert recall(tmp_path, "pets", "bronze", "other") is None
    flip(snapshot.path / "rows-00000.parquet")
    assert recall(tmp_path, "pets", "bronze", "abc") is None


def test_latest_is_the_one_that_was_marked_last(tmp_path: Path) -> None:
    first, second = write(tmp_path), write(tmp_path, ROWS.slice(1))
    assert latest(tmp_path, "pets", "bronze") is None
    for snapshot in (second, first):
        mark_latest(snapshot)
    assert latest(tmp_path, "pets", "bronze") == first.id


def test_an_absent_snapshot_is_named_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="has no gold snapshot 'ab' of dataset 'pets'; `elasmo ingest"):
        open_snapshot(tmp_path, "pets", "gold", "ab")
