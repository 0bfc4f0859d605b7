"""The stages of an ingestion, each as a `with` block that fills in its record of the ledger.

copy            the source's files are hashed, its SQL tables copied
bronze, silver, gold
profile.bronze, profile.silver, profile.gold
gate
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elasmo.data.manifest import Layer, Snapshot
from elasmo.ingest.gate_keeper import profile_path, report_of
from elasmo.sources.quarantine import read_quarantine
from elasmo.stages.stage_ledger import Ledger, Stage
from elasmo.stages.stage_run import read_ledger

REASONS_KEPT = 20


class StageRecorder:
    """Knows how often each stage has failed just before, and how large the layer below is."""

    def __init__(self, lake: Path, dataset: str, folder: Path, synthetic: bool = False) -> None:
        """`folder` is the dataset's; the bytes of its files are what `copy` and `bronze` are said to read."""
        self._lake = lake
        self._dataset = dataset
        self._bytes_in: int | None = folder_bytes(folder)
        self._rows_in: int | None = None
        self._ledger = Ledger(lake, dataset, synthetic)
        self._retries: Counter[str] = Counter()
        for run in read_ledger(lake, dataset):
            self._retries[run.stage] = 0 if run.outcome == "done" else self._retries[run.stage] + 1

    @contextmanager
    def copying(self) -> Iterator[None]:
        with self._stage("copy"):
            yield

    @contextmanager
    def making(self, layer: Layer) -> Iterator[Stage]:
        """A layer, of the one that was made before it; tell the stage with `made`."""
        with self._stage(layer) as stage:
            yield stage

    def made(self, stage: Stage, snapshot: Snapshot, reused: bool) -> None:
        """Notes what a layer holds and refused; the next one reads it."""
        self._rows_in, self._bytes_in = sum(snapshot.tables().values()), snapshot.size_bytes()
        stage.rows_out, stage.bytes_out, stage.reused = self._rows_in, self._bytes_in, reused
        refused = read_quarantine(self._lake, self._dataset, snapshot.details.get("quarantine"))
        stage.quarantined = dict(Counter(refusal.kind for refusal in refused).most_common(REASONS_KEPT))

    @contextmanager
    def profiling(self, snapshot: Snapshot) -> Iterator[None]:
        with self._stage(f"profile.{snapshot.manifest['layer']}") as stage:
            stage.reused = profile_path(snapshot).exists()
            yield

    @contextmanager
    def gating(self, silver: Snapshot) -> Iterator[None]:
        with self._stage("gate") as stage:
            stored = report_of(silver)
            stage.reused = stored is not None and stored.opens
            try:
                yield
            finally:
                report = report_of(silver)
                stage.verdict = None if report is None else report.verdict

    @contextmanager
    def _stage(self, name: str) -> Iterator[Stage]:
        with self._ledger.stage(name, self._rows_in, self._bytes_in, self._retries[name]) as stage:
            yield stage


def folder_bytes(folder: Path) -> int | None:
    """Size of the files below a folder, links not followed; None where a part of it cannot be read."""
    found, waiting = 0, [str(folder)]
    try:
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        found += entry.stat(follow_symlinks=False).st_size
    except OSError:
        return None
    return found
