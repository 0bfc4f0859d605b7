"""Ingestion: from a dataset folder to a gold snapshot. The same input gives the same snapshots and is not redone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elasmo.config import Config
from elasmo.data.manifest import Layer, Snapshot, canonical_hash, mark_latest, recall, remember
from elasmo.data.openlineage_events import Artifact, LineageEvents, artifact
from elasmo.ingest.bronze import bronze_fingerprint, write_bronze
from elasmo.ingest.gate_keeper import pass_gate, profile_of
from elasmo.ingest.gate_report import GateReport
from elasmo.ingest.gold_writer import gold_fingerprint, write_gold
from elasmo.ingest.silver import Silver, silver_fingerprint, write_silver
from elasmo.ingest.stage_recorder import StageRecorder
from elasmo.sources.contract import Contract, load_contract
from elasmo.sources.files import FilesSource
from elasmo.sources.quarantine import Refusal, read_quarantine
from elasmo.sources.recipe import RecipeSource
from elasmo.sources.source import Source
from elasmo.sources.tables import TablesSource


@dataclass(frozen=True)
class LayerResult:
    """A layer that stands.

    Attributes:
        layer: bronze, silver or gold.
        snapshot: its id.
        rows: rows of each table.
        bytes: size of its files.
        seconds: time it took, hashing included.
        reused: whether it stood before and was only verified.
    """

    layer: Layer
    snapshot: str
    rows: dict[str, int]
    bytes: int
    seconds: float
    reused: bool


@dataclass(frozen=True)
class IngestResult:
    """What an ingestion left in the lake.

    Attributes:
        dataset: its name.
        lake: where the layers lie.
        layers: bronze, silver, gold.
        refused: rows in quarantine, of both steps.
        modalities: gold rows of each (split, modality).
        seconds: wall time.
        gate: what the gate found of silver.
    """

    dataset: str
    lake: Path
    layers: tuple[LayerResult, ...]
    refused: tuple[Refusal, ...]
    modalities: dict[str, dict[str, int]]
    seconds: float
    gate: GateReport

    @property
    def gold(self) -> str:
        """Id of the gold snapshot."""
        return self.layers[-1].snapshot

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Rows of each table of each layer."""
        return {layer.layer: layer.rows for layer in self.layers}

    @property
    def reasons(self) -> Counter[str]:
        """Refused rows by table and kind of reason."""
        return Counter(refusal.kind for refusal in self.refused)


Progress = Callable[[Layer, LayerResult | None], None]
"""Told (layer, None) when a layer begins and (layer, result) when it stands."""


def ingest(
    config: Config,
    dataset_dir: str | Path | None = None,
    progress: Progress | None = None,
    accept: bool = False,
    synthetic: bool = False,
) -> IngestResult:
    """Ingests a dataset folder (`data.dataset` when None) into `data.lake`.

    Bad rows go to the quarantine. Layers whose input has not changed are verified by hash and kept. `accept` makes gold
    of a silver snapshot that the gate blocks. Every stage is recorded in the dataset's ledger; `synthetic` marks those
    records as evidence of faults that were injected.

    Raises:
        ContractError: no folder, no contract, or a contract that cannot be used.
        SourceError: the recipe or the rows file cannot be read.
        GateError: silver drifted from the snapshot before it, or breaks the contract; no gold is made.
        GoldBuildError: no sample is left, or the model config does not fit the data.
    """
    start = time.perf_counter()
    folder = Path(dataset_dir if dataset_dir is not None else config.data.dataset)
    contract = load_contract(folder)
    lake = Path(config.data.lake)
    source = _source(folder, contract, lake)
    limits = contract.media.limits(config.data.limits)
    results: list[LayerResult] = []
    reports: list[GateReport] = []

    events = LineageEvents(config.data.openlineage)
    stages = StageRecorder(lake, contract.name, folder, synthetic)

    def layer(name: Layer, fingerprint: str, write: Callable[[], Snapshot], above: Artifact) -> Snapshot:
        with events.job(f"ingest.{contract.name}.{name}", [above]) as made:
            snapshot = stand(name, fingerprint, write)
            made.append(artifact(snapshot))
        return snapshot

    def stand(name: Layer, fingerprint: str, write: Callable[[], Snapshot]) -> Snapshot:
        if progress is not None:
            progress(name, None)
        began = time.perf_counter()
        with stages.making(name) as stage:
            standing = recall(lake, contract.name, name, fingerprint)
            snapshot = standing or write()
            if standing is None:
                remember(snapshot, fingerprint)
            stages.made(stage, snapshot, standing is not None)
        with stages.profiling(snapshot):
            profile_of(snapshot)
        if name == "silver":  # before it becomes the latest, which is what the next snapshot is held against
            with stages.gating(snapshot):
                reports.append(pass_gate(snapshot, bronze, contract, source.tables, accept))
        mark_latest(snapshot)
        seconds = time.perf_counter() - began
        result = LayerResult(name, snapshot.id, snapshot.tables(), snapshot.size_bytes(), seconds, standing is not None)
        results.append(result)
        if progress is not None:
            progress(name, result)
        return snapshot

    with stages.copying():
        described = source.describe()
    bronze = layer(
        "bronze",
        bronze_fingerprint(contract, source, described),
        lambda: write_bronze(lake, contract, source, described),
        Artifact(str(folder.resolve()), canonical_hash(described)[:16]),
    )
    source.release()
    silver = layer(
        "silver",
        silver_fingerprint(bronze, contract, limits),
        lambda: write_silver(lake, bronze, contract, source, limits),
        artifact(bronze),
    )
    gold = layer(
        "gold",
        gold_fingerprint(silver, contract, config, limits),
        lambda: write_gold(lake, Silver(silver, source), contract, source, config, limits),
        artifact(silver),
    )
    refused = [
        refusal
        for snapshot in (silver, gold)
        for refusal in read_quarantine(lake, contract.name, snapshot.details["quarantine"])
    ]
    modalities = gold.details["rows_by_modality"]
    seconds = time.perf_counter() - start
    return IngestResult(contract.name, lake, tuple(results), tuple(refused), modalities, seconds, reports[0])


def _source(folder: Path, contract: Contract, lake: Path) -> Source:
    match contract.source:
        case "recipe":
            return RecipeSource(folder, contract)
        case "files":
            return FilesSource(folder, contract)
        case "tables":
            return TablesSource(folder, contract, lake)
