"""Saves a rank's checkpoints in training: a copy to the host within the step, the write on a thread beside the next.

At most one checkpoint is in flight: the next save waits for it. An error of the writer is raised at the next save or at
the end, in one sentence, on every rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasmo.model.fragments import Manifest
from elasmo.model.stores import Store
from elasmo.train.background import Background
from elasmo.train.checkpoint_commit import Gather, write
from elasmo.train.snapshot import HostBuffers, Snapshot


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint and what it cost.

    Attributes:
        waited_s: how long training waited for the checkpoint before this one.
        copied_s: how long it waited for the copy to the host; with `background` off, for the write.
        written_s: from the copy to the commit.
    """

    manifest: Manifest
    waited_s: float
    copied_s: float
    written_s: float

    @property
    def stalled_s(self) -> float:
        return self.waited_s + self.copied_s


class CheckpointSaver:
    """One rank's way to write checkpoints.

    Args:
        root: of the run's checkpoints.
        gather: over all ranks, in a group that nothing else uses: it is called on a thread.
        background: whether to write on a thread.
    """

    def __init__(self, root: str | Path | Store, rank: int, gather: Gather, background: bool = True) -> None:
        self._root, self._rank, self._gather = root, rank, gather
        self._writer = Background() if background else None
        self._buffers = HostBuffers()

    def save(
        self, snapshot: Snapshot, step: int, meta: Mapping[str, Any], done: Callable[[Saved], None] = lambda saved: None
    ) -> float:
        """Begins a checkpoint; every rank calls it after the same steps.

        Args:
            snapshot: views into the engine's memory.
            done: called once the checkpoint is committed, on the writing thread.

        Returns:
            Seconds that training stood still.

        Raises:
            CheckpointError: the checkpoint before could not be written.
        """
        started = time.perf_counter()
        if self._writer is None:
            manifest = write(snapshot, self._root, step, meta, self._rank, self._gather)
            stalled = time.perf_counter() - started
            done(Saved(manifest, 0.0, stalled, stalled))
            return stalled
        waited = self._writer.wait()  # before the buffers are written to again
        copy = self._buffers.copy(snapshot)
        copied = time.perf_counter() - started - waited

        def job() -> None:
            began = time.perf_counter()
            manifest = write(copy, self._root, step, meta, self._rank, self._gather)
            done(Saved(manifest, waited, copied, time.perf_counter() - began))

        self._writer.start(job)
        return time.perf_counter() - started

    def finish(self) -> None:
        """Waits for the checkpoint in flight.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._writer is not None:
            self._writer.wait()
