"""Lineage: the chain of a gold snapshot, and a chain that does not hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from elasmo.config import Config
from elasmo.data.lineage import lineage
from elasmo.data.manifest import SnapshotError, manifest_hash
from elasmo.ingest.ingest import ingest


def test_the_chain_goes_from_gold_to_the_files_it_came_from(pets: Path, config: Config) -> None:
    result = ingest(config, pets)
    chain = lineage(config.data.lake, pets, result.gold)
    assert [(node.layer, node.snapshot) for node in chain.nodes] == [
        (layer.layer, layer.snapshot) for layer in reversed(result.layers)
    ]
    assert {node.layer: node.rows for node in chain.nodes} == result.counts
    expected = {
        str(path.relative_to(pets)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in pets.rglob("*")
        if path.is_file()
    }
    assert chain.files == expected
    assert chain.licences[0]["kind"] == "synthetic"


def test_refused_rows_are_counted_where_they_were_refused(pets: Path, config: Config) -> None:
    with open(pets / "rows.jsonl", "a") as file:
        file.write("{\n[]\n")
    gold, silver, bronze = lineage(config.data.lake, pets, ingest(config, pets).gold).nodes
    assert (gold.refused, silver.refused, bronze.refused) == (0, 2, 0)
    assert silver.quarantine is not None and gold.quarantine is None


def test_a_parent_that_is_another_one_is_refused(pets: Path, config: Config) -> None:
    result = ingest(config, pets)
    path = result.lake / "pets" / "gold" / result.gold / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["parents"][0]["sha256"] = "0" * 64
    manifest["sha256"] = manifest_hash(manifest)
    manifest["id"] = manifest["sha256"][:16]
    forged = path.parent.with_name(manifest["id"])
    forged.mkdir()
    (forged / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(SnapshotError, match=r"was made from 0000000000000000; run `elasmo ingest` again"):
        lineage(config.data.lake, pets, manifest["id"])
