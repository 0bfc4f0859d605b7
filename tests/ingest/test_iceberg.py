"""Iceberg tables hold what the snapshot holds, once, and name the manifest that it came from."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from elasmo.config import Config
from elasmo.data.manifest import Snapshot, SnapshotError, SnapshotWriter, open_snapshot
from elasmo.ingest.iceberg import IcebergError, export, local_catalog, named_catalog
from elasmo.ingest.ingest import ingest

pytest.importorskip("pyiceberg")


def snapshot(lake: Path, *shards: dict[str, Any]) -> Snapshot:
    with SnapshotWriter(lake, "pets", "silver") as writer:
        writer.declare("photos", pa.table(shards[0]).schema if shards else pa.schema([("key", pa.string())]))
        for shard in shards:
            writer.add("photos", pa.table(shard))
    return writer.snapshot


def rows(catalog: Any, table: str = "pets.silver_photos", **which: Any) -> list[dict[str, Any]]:
    return sorted(catalog.load_table(table).scan(**which).to_arrow().to_pylist(), key=str)


ONE = {"key": ["a", "b"], "png": [b"x", None], "record": [{"age": 3}, {"age": None}], "tokens": [[1, 2], []]}
TWO = {"key": ["c"], "png": [b"z"], "record": [{"age": 9}], "tokens": [[7]]}


def test_rows_are_read_back_equal_and_the_snapshot_names_its_manifest(tmp_path: Path) -> None:
    silver, catalog = snapshot(tmp_path / "lake", ONE, TWO), local_catalog(tmp_path / "iceberg")
    (table,) = export(silver, catalog)
    assert (table.name, table.rows, table.stood) == ("pets.silver_photos", 3, False)
    assert rows(catalog) == sorted(silver.read_all("photos").to_pylist(), key=str)
    current = catalog.load_table(table.name).current_snapshot()
    assert current is not None and current.summary is not None
    assert current.summary.additional_properties["elasmo.manifest"] == silver.sha256
    (again,) = export(silver, local_catalog(tmp_path / "iceberg"))
    assert again.stood and len(catalog.load_table(table.name).snapshots()) == 2  # one a shard


def test_the_next_snapshot_replaces_the_rows_and_the_earlier_one_stays_readable(tmp_path: Path) -> None:
    catalog = local_catalog(tmp_path / "iceberg")
    export(snapshot(tmp_path / "lake", ONE), catalog)
    first = catalog.load_table("pets.silver_photos").current_snapshot()
    assert first is not None
    added = {**TWO, "modality": ["image"]}
    export(snapshot(tmp_path / "lake", added), catalog)
    assert [row["key"] for row in rows(catalog)] == ["c"] and rows(catalog)[0]["modality"] == "image"
    assert [row["key"] for row in rows(catalog, snapshot_id=first.snapshot_id)] == ["a", "b"]
    export(snapshot(tmp_path / "lake"), catalog)
    assert rows(catalog) == []


def test_every_layer_of_an_ingested_dataset_is_exported(tmp_path: Path, pets: Path, config: Config) -> None:
    catalog, result = local_catalog(tmp_path / "iceberg"), ingest(config, pets)
    for layer in result.layers:
        opened = open_snapshot(Path(config.data.lake), "pets", layer.layer, layer.snapshot)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = {table.name: table.rows for table in export(opened, catalog)}
        assert exported == {f"pets.{layer.layer}_{name}": count for name, count in opened.tables().items()}
    gold = open_snapshot(Path(config.data.lake), "pets", "gold", result.gold)
    assert rows(catalog, "pets.gold_train") == sorted(gold.read_all("train").to_pylist(), key=str)


def test_a_damaged_shard_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    catalog = local_catalog(tmp_path / "iceberg")
    export(snapshot(tmp_path / "lake", ONE), catalog)
    damaged = snapshot(tmp_path / "lake", TWO, ONE)
    (damaged.path / "photos-00001.parquet").write_bytes(b"torn")
    with pytest.raises(SnapshotError, match="differs from its manifest"):
        export(damaged, catalog)
    assert [row["key"] for row in rows(catalog)] == ["a", "b"]


def test_a_column_of_another_type_is_refused_in_a_sentence(tmp_path: Path) -> None:
    catalog = local_catalog(tmp_path / "iceberg")
    export(snapshot(tmp_path / "lake", ONE), catalog)
    with pytest.raises(IcebergError, match=r"pets\.silver_photos cannot take the rows of snapshot .*; drop the table"):
        export(snapshot(tmp_path / "lake", {**TWO, "png": [7]}), catalog)
    assert [row["key"] for row in rows(catalog)] == ["a", "b"]


def test_without_the_extra_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasmo.ingest.iceberg.find_spec", lambda name: None)
    with pytest.raises(IcebergError, match=r"pip install 'elasmo\[iceberg\]'"):
        local_catalog(tmp_path)
    with pytest.raises(IcebergError, match=r"pip install 'elasmo\[iceberg\]'"):
        named_catalog("prod")


def test_a_catalog_that_is_not_configured_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with pytest.raises(IcebergError, match="Catalog 'absent' cannot be opened"):
        named_catalog("absent")
