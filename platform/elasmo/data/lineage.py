"""Lineage: the chain from a gold snapshot through silver and bronze to the files it was made from, checked by hash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasmo.data.manifest import Layer, Snapshot, SnapshotError, open_snapshot


@dataclass(frozen=True)
class LineageNode:
    """One snapshot of the chain.

    Attributes:
        layer: gold, silver or bronze.
        snapshot: its id.
        sha256: hash of its manifest, which covers every byte below it.
        created: UTC time of writing.
        rows: rows of each table.
        bytes: size of all files.
        refused: rows that this step sent to the quarantine.
        quarantine: snapshot id of those rows, None when there are none.
    """

    layer: Layer
    snapshot: str
    sha256: str
    created: str
    rows: dict[str, int]
    bytes: int
    refused: int
    quarantine: str | None


@dataclass(frozen=True)
class Lineage:
    """From gold, first, to bronze, last, and what bronze was landed from.

    Attributes:
        dataset: its name.
        nodes: gold, silver, bronze.
        files: sha256 of each file of the dataset folder that rows depend on.
        inputs: sha256 of each input from outside of the folder.
        licences: part, licence, kind (real, measured, synthetic), origin and note of each part.
    """

    dataset: str
    nodes: tuple[LineageNode, ...]
    files: dict[str, str]
    inputs: dict[str, str]
    licences: list[dict[str, Any]]


def lineage(lake: str | Path, dataset: str | Path, snapshot: str) -> Lineage:
    """The chain of the gold snapshot `snapshot`; `dataset` is its name or folder.

    Raises:
        SnapshotError: a snapshot of the chain is absent, damaged, or not the one its child was made from.
    """
    name = Path(dataset).name
    current = open_snapshot(Path(lake), name, "gold", snapshot)
    chain = [current]
    while current.manifest["parents"]:
        (parent,) = current.manifest["parents"]
        above = open_snapshot(Path(lake), name, parent["layer"], parent["id"])
        if above.sha256 != parent["sha256"]:
            raise SnapshotError(
                f"{above.path} hashes to {above.sha256[:16]}, but {current.path} was made from "
                f"{parent['sha256'][:16]}; run `elasmo ingest` again."
            )
        chain.append(above)
        current = above
    source = current.details
    return Lineage(name, tuple(_node(s) for s in chain), source["files"], source["inputs"], source["licences"])


def _node(snapshot: Snapshot) -> LineageNode:
    return LineageNode(
        layer=snapshot.manifest["layer"],
        snapshot=snapshot.id,
        sha256=snapshot.sha256,
        created=snapshot.manifest["created"],
        rows=snapshot.tables(),
        bytes=snapshot.size_bytes(),
        refused=snapshot.details.get("refused", 0),
        quarantine=snapshot.details.get("quarantine"),
    )
