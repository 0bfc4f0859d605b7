"""The order in which the rows of one source are read: an endless walk whose any stretch is found without the rest.

Shards are shuffled, then rows within a window of neighbouring shards, so a stretch touches few shards. Random numbers
come from a counter-based generator keyed by (snapshot, seed, epoch, window): place 10^12 costs the same as place 0. An
epoch's tail is followed by the next epoch's head: no row is dropped, padded away or repeated within an epoch.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class ShardOrder:
    """The walk over one source.

    Args:
        snapshot: content hash of what is read; another snapshot has another order.
        seed: of the run.
        shard: [rows], the shard of each row; rows of a shard are adjacent.
        window_shards: shards whose rows are mixed.
    """

    def __init__(self, snapshot: str, seed: int, shard: NDArray[np.int32], window_shards: int) -> None:
        self.rows = len(shard)
        self.window_shards = window_shards
        borders = np.flatnonzero(np.diff(shard)) + 1
        self._start = np.concatenate([[0], borders, [len(shard)]]).astype(np.int64)
        digest = hashlib.blake2b(f"{snapshot}/{seed}".encode(), digest_size=16).digest()
        self._key = np.frombuffer(digest, dtype=np.uint64)
        self._windows = lru_cache(maxsize=4)(self._make_windows)
        self._shuffled = lru_cache(maxsize=8)(self._make_shuffled)

    def take(self, first: int, count: int) -> NDArray[np.int64]:
        """Positions in the source, int64 [count], of the rows at places `first` and on, counted over all epochs."""
        parts: list[NDArray[np.int64]] = []
        while count > 0:
            epoch, offset = divmod(first, self.rows)
            starts, _ = self._windows(epoch)
            window = int(np.searchsorted(starts, offset, side="right")) - 1
            inside = offset - int(starts[window])
            parts.append(self._shuffled(epoch, window)[inside : inside + count])
            first, count = first + len(parts[-1]), count - len(parts[-1])
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _make_windows(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First place of each window of the epoch, and the order of all shards."""
        order = self._random(epoch, 0).permutation(len(self._start) - 1)
        heads = np.arange(0, len(order), self.window_shards)
        sizes = np.add.reduceat(np.diff(self._start)[order], heads)
        return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64), order

    def _make_shuffled(self, epoch: int, window: int) -> NDArray[np.int64]:
        order = self._windows(epoch)[1]
        shards = order[window * self.window_shards : (window + 1) * self.window_shards]
        rows = np.concatenate([np.arange(self._start[s], self._start[s + 1]) for s in shards])
        return self._random(epoch, 1 + window).permutation(rows)

    def _random(self, epoch: int, stream: int) -> np.random.Generator:
        counter = np.array([0, 0, stream, epoch], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))
