"""Whose turn it is, and who has to go when the queue is full: pure functions that share places out by API key.

Within a key the first to come is the first to go. Between keys the one that has least for its weight goes first
(max-min fairness), and the one that waits with most gives way: a key that asks for more than its share delays itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Waiting:
    """A request in the queue.

    Attributes:
        key: whose it is.
        weight: of the key, above 0.
        completions: places it takes.
    """

    key: str
    weight: float
    completions: int


def next_in_line(waiting: Sequence[Waiting], running: Mapping[str, int]) -> int | None:
    """Index of the request to go next, though there may be no room for it yet; None when nobody waits.

    Args:
        waiting: in order of arrival.
        running: places that a key's requests have; a key that has none may be left out.
    """
    first: dict[str, int] = {}
    for at, request in enumerate(waiting):
        first.setdefault(request.key, at)
    return min(first.values(), key=lambda at: (running.get(waiting[at].key, 0) / waiting[at].weight, at), default=None)


def gives_way(waiting: Sequence[Waiting], comes: Waiting) -> int | None:
    """Index of the request that leaves a full queue for one that comes, or None where the comer has to go.

    It is the last to come of the key that waits with most for its weight, if that is still more than what the comer's
    key would wait with.
    """
    held: dict[str, float] = {}
    last: dict[str, int] = {}
    for at, request in enumerate(waiting):
        held[request.key] = held.get(request.key, 0.0) + request.completions / request.weight
        last[request.key] = at
    most = max(held, key=lambda key: held[key], default=None)
    if most is None or most == comes.key:
        return None
    if held[most] <= held.get(comes.key, 0.0) + comes.completions / comes.weight:
        return None
    return last[most]
