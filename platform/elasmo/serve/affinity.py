"""Prefix affinity: prompts that begin alike go to the replica that has their beginning, unless that one is overloaded.

Nothing is asked of the replicas: what an ingress sent where is what their caches are believed to hold. A wrong belief
costs a prefix its computation and changes no answer.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from elasmo.model.encoded import Encoded

Replica = TypeVar("Replica", bound=Hashable)

BLOCK = 16
"""Tokens of a prompt that are told apart together."""


def prefix_digests(prompt: Encoded) -> tuple[bytes, ...]:
    """One digest for each beginning of a prompt that is whole blocks long, the shortest first.

    Media count from the first token on, so prompts share a beginning only if all their media are the same.
    """
    digest = hashlib.blake2b(digest_size=16)
    media = (prompt.images, *prompt.audio, prompt.cell_fields, prompt.cell_values, prompt.cell_categories)
    for array in (*media, prompt.cell_details):
        digest.update(str(array.shape).encode())
        digest.update(array.tobytes())
    found = []
    for start in range(0, len(prompt.tokens) - BLOCK + 1, BLOCK):
        digest.update(prompt.tokens[start : start + BLOCK].tobytes())
        found.append(digest.digest())
    return tuple(found)


class PrefixMap(Generic[Replica]):
    """Which replica was sent which beginnings; those used longest ago are forgotten first.

    Args:
        limit: beginnings kept; as many as there are blocks in the caches is enough.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._replicas: OrderedDict[bytes, Replica] = OrderedDict()

    def add(self, digests: Sequence[bytes], replica: Replica) -> None:
        """A prompt went to a replica, which has all its beginnings from now on."""
        for digest in reversed(digests):  # a beginning is forgotten after those that are longer
            self._replicas[digest] = replica
            self._replicas.move_to_end(digest)
        while len(self._replicas) > self._limit:
            self._replicas.popitem(last=False)

    def find(self, digests: Sequence[bytes]) -> tuple[Replica | None, int]:
        """The replica with the longest known beginning of a prompt, and how many tokens that is; (None, 0) if none."""
        for count in range(len(digests), 0, -1):
            replica = self._replicas.get(digests[count - 1])
            if replica is not None:
                return replica, count * BLOCK
        return None, 0


def prefer(holder: Replica | None, queues: Mapping[Replica, int], slack: int) -> Replica | None:
    """The holder of a prompt's beginning, if it is there and not overloaded: `slack` requests more than the idlest."""
    if holder is None or holder not in queues or queues[holder] - min(queues.values()) > slack:
        return None
    return holder
