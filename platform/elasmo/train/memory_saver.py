"""One rank's way to copy checkpoints into the memory tier, beside the steps. What fails there never stops a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from elasmo.model.fragments import CheckpointError
from elasmo.train import retention
from elasmo.train.checkpoint_commit import Gather
from elasmo.train.checkpoint_saver import CheckpointSaver, Saved
from elasmo.train.memory_store import MemoryStore
from elasmo.train.snapshot import Snapshot

logger = logging.getLogger(__name__)


class MemorySaver:
    """Keeps the newest step whole in every holder; the one before goes once it is.

    Args:
        store: of the run.
        gather: over all ranks, in a group that nothing else uses.
        report: called on rank 0 with each step that is in memory, or that could not be brought there.
    """

    def __init__(
        self, store: MemoryStore, rank: int, gather: Gather, report: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._store, self._rank, self._report = store, rank, report
        self._saver = CheckpointSaver(store, rank, gather)
        self._begun = 0

    def save(self, snapshot: Snapshot, step: int, meta: Mapping[str, Any]) -> None:
        """Begins a copy; every rank calls it after the same steps."""
        self._tolerate(self._saver.finish)
        self._begun = step
        self._tolerate(lambda: self._saver.save(snapshot, step, meta, lambda saved: self._saved(step, saved)))

    def finish(self) -> None:
        """Waits for the copy in flight."""
        self._tolerate(self._saver.finish)

    def _saved(self, step: int, saved: Saved) -> None:
        if self._rank != 0:
            return
        retention.prune(self._store, 1, set())
        size = saved.manifest.bytes()
        self._report(
            {
                "step": step,
                "bytes": size,
                "copies": self._store.copies,
                "seconds": saved.stalled_s,
                "written": saved.written_s,
                "gb_s": size / 1e9 / saved.written_s if saved.written_s else None,
            }
        )

    def _tolerate(self, action: Callable[[], object]) -> None:
        try:
            action()
        except CheckpointError as error:  # on every rank alike
            if self._rank == 0:
                logger.warning("Step %d is not in the memory tier: %s", self._begun, error)
                self._store.child(retention.folder_name(self._begun)).clear()  # half of it would take room for good
                self._report({"step": self._begun, "refused": str(error)})
