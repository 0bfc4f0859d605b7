"""Restores the newest checkpoint that can be read: ranks read apart, agree, and fall back together to an older one.

A rank that finds damage says so before any rank takes effect of what it read, so all of them end at the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from elasmo.model.fragments import ADVICE, CheckpointError, DamagedCheckpoint
from elasmo.model.stores import Store
from elasmo.train.checkpoint_commit import Gather
from elasmo.train.retention import step_of

Tier = Literal["memory", "storage"]
T = TypeVar("T")


@dataclass(frozen=True)
class RestorePoint:
    """A committed checkpoint that a run may go on from."""

    step: int
    url: str
    tier: Tier = "storage"


def restore_points(storage: Sequence[Store], memory: Sequence[Store] = ()) -> list[RestorePoint]:
    """Committed checkpoints of a run in the order in which they are tried: newest first, of one step memory first."""
    found = [RestorePoint(step_of(place.name), place.url, "memory") for place in memory]
    found += [RestorePoint(step_of(place.name), place.url, "storage") for place in storage]
    return sorted(found, key=lambda point: -point.step)  # stable: memory stays in front


def restore_newest(
    first: RestorePoint,
    read: Callable[[RestorePoint], T],
    gather: Gather,
    older: Callable[[RestorePoint, str], RestorePoint | None],
) -> tuple[RestorePoint, T]:
    """Reads checkpoints until every rank has one whole; a collective call.

    Args:
        first: where to begin; the same on every rank.
        read: one checkpoint on this rank, without collectives.
        older: the next one to try after one was refused for a reason, None if there is none; called on every rank.

    Returns:
        The checkpoint, and what `read` gave.

    Raises:
        CheckpointError: on every rank, if none is whole; or what `read` raises of one that is not damaged.
    """
    point: RestorePoint | None = first
    refused: list[str] = []
    while point is not None:
        found: list[T] = []
        damage = None
        try:
            found.append(read(point))
        except DamagedCheckpoint as error:
            damage = str(error)
        reason = next((said for said in gather(damage) if said is not None), None)
        if reason is None:
            return point, found[0]
        refused.append(reason.removesuffix(ADVICE))
        point = older(point, reason)
    raise CheckpointError(
        f"No checkpoint of the run is whole: {'; '.join(refused)}; restore a file, or start a new run."
    )
