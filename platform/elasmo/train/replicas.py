"""Silent corruption: ranks that hold the same parameters must hold the same bits, and one that does not is named.

A bit that flips in a weight shows in no error and, for a while, in no loss. Replicas are compared by a sum over the
words of each tensor, which any single flip changes and which a device computes as fast as it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Replica:
    """One rank's parameters: the ranks that hold the same, and name and sum of each tensor."""

    group: tuple[int, ...]
    names: tuple[str, ...]
    sums: tuple[int, ...]


@dataclass(frozen=True)
class Odd:
    """Ranks whose copies differ from those of most, or all of a group without a majority, and the first such tensor."""

    ranks: tuple[int, ...]
    tensor: str
    tensors: int
    majority: bool

    def sentence(self, step: int) -> str:
        who = f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        what = f"{self.tensor!r}" + (f" and {self.tensors - 1} other tensors" if self.tensors > 1 else "")
        said = f"other bits of {what} than" if self.majority else f"unlike bits of {what}, with no majority among"
        return f"Silent corruption before step {step}: {who}: {said} the ranks that should hold the same"


def word_sums(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """For each tensor the sum of its bytes read as integers of its element's width, modulo 2^64."""
    sums = [
        tensor.detach().contiguous().view(-1).view(_WORDS[tensor.element_size()]).sum(dtype=torch.int64)
        for tensor in tensors
    ]
    return tuple(torch.stack(sums).tolist()) if sums else ()


def odd_ranks(replicas: Sequence[Replica]) -> Odd | None:
    """Who differs from the majority of its replicas; a pure function of what all ranks sent, in rank order."""
    ranks: set[int] = set()
    tensors: dict[str, None] = {}
    majority = True
    for group in dict.fromkeys(replica.group for replica in replicas):
        for at, name in enumerate(replicas[group[0]].names):
            votes = Counter(replicas[rank].sums[at] for rank in group)
            if len(votes) == 1:
                continue
            value, count = votes.most_common(1)[0]
            decided = 2 * count > len(group)
            majority = majority and decided
            ranks.update(rank for rank in group if not decided or replicas[rank].sums[at] != value)
            tensors[name] = None
    if not ranks:
        return None
    return Odd(tuple(sorted(ranks)), next(iter(tensors)), len(tensors), majority)
