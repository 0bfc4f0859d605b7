"""Which rows are near an earlier one, without comparing all with all.

Rows are compared only where they agree in a band of their hashes. For pictures the bands make this exact: among
d + 2 bands, hashes that differ in d bits agree in two at least. For texts a near row is missed with probability below
`MISSED`. The result is a pure function of the rows in their order: which process hashed them when has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elasmo.content.picture_hash import BITS
from elasmo.content.text_hash import NUMBERS

MISSED = 0.005
NONE = -1
_AT_ONCE = 1 << 18
"""Pairs that are compared in one go, which bounds memory."""

Positions = NDArray[np.int64]


class Likeness(Protocol):
    """How hashes of one kind are told apart."""

    def bands(self, hashes: NDArray[Any]) -> Iterator[NDArray[np.uint64]]:
        """For each band the key of every row; rows that differ in every key are not near."""
        ...

    def distances(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        """Distance of the rows of `left` to those of `right`."""
        ...

    @property
    def furthest(self) -> float:
        """Distance up to which rows are near."""
        ...


@dataclass(frozen=True)
class Pictures:
    """Perceptual hashes, uint64 [rows], that differ in at most `furthest` bits."""

    furthest: int

    def bands(self, hashes: NDArray[Any]) -> Iterator[NDArray[np.uint64]]:
        edges = np.linspace(0, BITS, self.furthest + 3).astype(int)
        masks = [((1 << high) - 1) ^ ((1 << low) - 1) for low, high in pairwise(edges.tolist())]
        for first, second in combinations(masks, 2):
            yield hashes & np.uint64(first | second)

    def distances(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        bits: NDArray[np.float64] = np.bitwise_count(left ^ right).astype(np.float64)
        return bits


@dataclass(frozen=True)
class Texts:
    """MinHashes, uint32 [rows, 128], of an estimated similarity of at least 1 - `furthest`."""

    furthest: float

    @property
    def rows_a_band(self) -> int:
        """The longest bands that miss texts at the very threshold with probability below `MISSED`."""
        alike = 1 - self.furthest
        sizes = range(NUMBERS, 0, -1)
        return next(r for r in sizes if r == 1 or (1 - alike**r) ** (NUMBERS // r) < MISSED)

    def bands(self, hashes: NDArray[Any]) -> Iterator[NDArray[np.uint64]]:
        size = self.rows_a_band
        for start in range(0, NUMBERS - size + 1, size):
            key = np.zeros(len(hashes), dtype=np.uint64)
            for column in range(start, start + size):
                key = (key ^ hashes[:, column]) * np.uint64(0x9E3779B97F4A7C15)
                key ^= key >> np.uint64(29)
            yield key

    def distances(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
        shares: NDArray[np.float64] = (left != right).mean(axis=1, dtype=np.float64)
        return shares


def first_near(hashes: NDArray[Any], likeness: Likeness, targets: int | None = None) -> Positions:
    """For each row the first one that is near it, `NONE` where there is none.

    Args:
        hashes: of the rows in their order, [rows] or [rows, numbers].
        targets: None looks among all rows before a row; a number looks for rows from that one on, among those before.

    Rows of one band are held against its first row together, the rest against its second, and so on. A thousand copies
    of one picture or of one template are therefore settled in one step.
    """
    best = np.full(len(hashes), NONE, dtype=np.int64)
    if len(hashes) < 2:
        return best
    unique, first, inverse = np.unique(hashes, axis=0, return_index=True, return_inverse=True)
    if targets is None:  # a copy is near the first of its copies, or what that is near
        order = np.argsort(first, kind="stable")
        found = _search(unique[order], likeness, None)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        lead = first[order]
        near = np.where(found[rank] >= 0, lead[found[rank]], NONE)[inverse.reshape(-1)]
        own = first[inverse.reshape(-1)]
        return np.where(near >= 0, near, np.where(own < np.arange(len(hashes)), own, NONE))
    return _search(hashes, likeness, targets)


def _search(hashes: NDArray[Any], likeness: Likeness, targets: int | None) -> Positions:
    count = len(hashes)
    best = np.full(count, count, dtype=np.int64)
    for keys in likeness.bands(hashes):
        order = np.argsort(keys, kind="stable")  # rows of one key stay in their order
        same = np.flatnonzero(np.concatenate(([True], keys[order][1:] != keys[order][:-1])))
        start = np.repeat(same, np.diff(np.append(same, count)))  # of each row's run, by place in `order`
        open_ = np.arange(count)
        if targets is not None:
            open_ = open_[order >= targets]
        step = 0
        while len(open_):
            place = start[open_] + step
            open_ = open_[(place < open_) & (order[np.minimum(place, count - 1)] < best[order[open_]])]
            if targets is not None:
                open_ = open_[order[start[open_] + step] < targets]
            rows, others = order[open_], order[start[open_] + step]
            hit = _near(hashes, rows, others, likeness)
            best[rows[hit]] = others[hit]
            open_ = open_[~hit]
            step += 1
    return np.where(best < count, best, NONE)


def _near(hashes: NDArray[Any], rows: Positions, others: Positions, likeness: Likeness) -> NDArray[np.bool_]:
    hits = [
        likeness.distances(hashes[rows[at : at + _AT_ONCE]], hashes[others[at : at + _AT_ONCE]])
        <= likeness.furthest + 1e-9
        for at in range(0, len(rows), _AT_ONCE)
    ]
    return np.concatenate(hits) if hits else np.zeros(0, dtype=bool)
