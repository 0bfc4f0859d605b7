"""Turns the ranks' snapshots into one committed checkpoint: every rank writes a file, then rank 0 puts the manifest.

Knows neither engine nor cluster: ranks meet in a `Gather` that is passed in, and files go to any store. A file's name
has never been used before, so that what a dead writer left, or one that is slow to die, is never mixed with it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elasmo.model.fragment_writer import put_manifest, write_fragments
from elasmo.model.fragments import CheckpointError, Manifest
from elasmo.model.stores import Store, open_store
from elasmo.train.retention import drop_unnamed, folder_name
from elasmo.train.snapshot import Snapshot

Gather = Callable[[Any], list[Any]]
"""Collects one object from every rank, in rank order, on every rank."""


def write(
    snapshot: Snapshot, root: str | Path | Store, step: int, meta: Mapping[str, Any], rank: int, gather: Gather
) -> Manifest:
    """Writes and commits a checkpoint from all ranks; a collective call. Returns the manifest on every rank.

    Args:
        root: of the run's checkpoints, reachable by every rank.
        meta: what training resumes with, stored in the manifest.

    Raises:
        CheckpointError: on every rank, if a rank could not write; the step is then not committed.
    """
    place = open_store(root).child(folder_name(step))
    name = f"rank-{rank:05d}-{secrets.token_hex(4)}.safetensors"
    written, problem = None, None
    try:
        if snapshot.pieces:  # else every copy that counts is elsewhere
            written = write_fragments(place, name, snapshot.pieces)
    except Exception as error:
        problem = _sentence(error)
    found = gather((problem, written, dict(snapshot.shapes)))
    _raise_first([problem for problem, _, _ in found], place, "writing")
    parts = [written for _, written, _ in found if written is not None]
    manifest = Manifest(
        step=step,
        shapes={name: shape for _, _, shapes in found for name, shape in shapes.items()},
        states=tuple(dict.fromkeys(state for _, own in parts for part in own for state in part.states)),
        fragments=tuple(fragment for _, own in parts for fragment in own),
        files=tuple(file for file, _ in parts),
        meta=meta,
    )
    if rank == 0:
        try:
            put_manifest(place, manifest)
            drop_unnamed(place, {file.name for file in manifest.files})
        except Exception as error:
            problem = _sentence(error)
    _raise_first(gather(problem), place, "committing")  # nobody goes on before the checkpoint exists
    return manifest


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"


def _raise_first(problems: list[str | None], place: Store, what: str) -> None:
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise CheckpointError(
                f"Checkpoint {place.url} was not committed: {what} failed on rank {rank}: {problem}; mend the storage "
                "and take the run up again at its last checkpoint."
            )
