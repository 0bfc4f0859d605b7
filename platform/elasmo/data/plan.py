"""Which rows a training step reads, and which rank computes them: a pure function of gold snapshot, seed and step.

A global batch is a fixed number of fixed micro-batch slots. The world size only decides which rank computes which
slot, so any number of ranks sees the same samples, and a run resumes at any step without replaying the past.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from elasmo.data.index import MODULES, GoldIndex


@dataclass(frozen=True)
class Slot:
    """One micro-batch of a global batch: the unit that moves between ranks.

    Attributes:
        step: zero-based training step.
        slot: position among the step's slots.
        rows: positions in the index, in the order in which they are collated.
        row_ids: their frozen row ids.
    """

    step: int
    slot: int
    rows: tuple[int, ...]
    row_ids: tuple[int, ...]

    def digest(self) -> str:
        return slot_digest(self.step, self.slot, self.row_ids)


def slot_digest(step: int, slot: int, row_ids: Iterable[int]) -> str:
    """Digest of the rows of a slot as they were read; equal to the plan's when exactly those rows came, in order."""
    text = f"{step}/{slot}:" + ",".join(str(row) for row in row_ids)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def step_receipt(slot_digests: Sequence[str]) -> str:
    """Receipt of a committed step from the digests of its slots in slot order."""
    return hashlib.blake2b("".join(slot_digests).encode(), digest_size=12).hexdigest()


class StepPlan:
    """The order of rows for a whole run.

    Shards are shuffled, then rows within a window of neighbouring shards, so a slot touches few shards. Random numbers
    come from a counter-based generator keyed by (seed, epoch, window): step s costs the same to find as step 0. An
    epoch's tail is completed by the next epoch's head: no row is dropped, padded away or repeated within an epoch.
    """

    def __init__(
        self, index: GoldIndex, seed: int, global_batch: int, micro_batch: int, window_shards: int = 4
    ) -> None:
        if len(index) == 0:
            raise ValueError(f"Gold snapshot {index.snapshot} has no row in this split; ingest more data.")
        if global_batch % micro_batch:
            raise ValueError(f"micro_batch={micro_batch} must divide global_batch={global_batch}.")
        self.index = index
        self.seed = seed
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.window_shards = window_shards
        self._shards, self._shard_rows = np.unique(index.shard, return_counts=True)
        self._shard_start = np.concatenate([[0], np.cumsum(self._shard_rows)])
        self._mean_cost = np.maximum(index.costs.mean(axis=0), 1e-9)
        self._epoch_windows = lru_cache(maxsize=4)(self._make_epoch_windows)
        self._window_rows = lru_cache(maxsize=8)(self._make_window_rows)
        self._step_slots = lru_cache(maxsize=64)(self._make_slots)

    def __reduce__(self) -> tuple[type[StepPlan], tuple[GoldIndex, int, int, int, int]]:
        return StepPlan, (self.index, self.seed, self.global_batch, self.micro_batch, self.window_shards)

    def rows(self, step: int) -> NDArray[np.int64]:
        """Positions in the index of the global batch of `step`, int64 [global_batch]."""
        first = step * self.global_batch
        return np.array([self._row_at(place) for place in range(first, first + self.global_batch)], dtype=np.int64)

    def slots(self, step: int) -> tuple[Slot, ...]:
        """The slots of `step`: the global batch dealt out so that every module's load is even over slots."""
        return self._step_slots(step)

    def assign(self, step: int, world: int) -> tuple[tuple[Slot, ...], ...]:
        """Slots of each rank, in computing order; ranks may differ by one slot where `world` does not divide them."""
        slots = self.slots(step)
        loads = np.array([self._load(slot.rows) for slot in slots])
        return tuple(tuple(slots[i] for i in sorted(group)) for group in deal(loads, world))

    def micro_steps(self, world: int) -> int:
        """Micro-batches a rank runs in a step: ranks with fewer slots run an empty one, so that collectives match."""
        return -(-(self.global_batch // self.micro_batch) // world)

    def target_tokens(self, step: int) -> int:
        """Tokens that count in the loss of the whole global batch of `step`."""
        return sum(self.slot_targets(slot) for slot in self.slots(step))

    def slot_targets(self, slot: Slot) -> int:
        """Tokens of a slot that count in the loss."""
        return int(self.index.target_tokens[list(slot.rows)].sum())

    def receipt(self, step: int) -> str:
        """What the receipt of `step` must be once it is committed."""
        return step_receipt([slot.digest() for slot in self.slots(step)])

    def balance(self, step: int, world: int) -> dict[str, float]:
        """Largest over mean load of a rank for each module that has any, 1.0 being even."""
        loads = np.array(
            [sum((self._tokens(s.rows) for s in group), np.zeros(len(MODULES))) for group in self.assign(step, world)]
        )
        mean = loads.mean(axis=0)
        return {name: float(loads[:, i].max() / mean[i]) for i, name in enumerate(MODULES) if mean[i] > 0}

    def tokens(self, slots: Iterable[Slot]) -> dict[str, int]:
        """Tokens each module processes for `slots`."""
        total = sum((self._tokens(slot.rows) for slot in slots), np.zeros(len(MODULES)))
        return {name: int(total[i]) for i, name in enumerate(MODULES)}

    def _tokens(self, rows: Sequence[int]) -> NDArray[np.float64]:
        total: NDArray[np.float64] = self.index.costs[list(rows)].sum(axis=0, dtype=np.float64)
        return total

    def _load(self, rows: Sequence[int]) -> NDArray[np.float64]:
        load: NDArray[np.float64] = self._tokens(rows) / self._mean_cost
        return load

    def _make_slots(self, step: int) -> tuple[Slot, ...]:
        rows = self.rows(step)
        groups = deal(self.index.costs[rows] / self._mean_cost, self.global_batch // self.micro_batch)
        slots = []
        for number, group in enumerate(groups):
            members = tuple(int(rows[i]) for i in sorted(group))
            slots.append(Slot(step, number, members, tuple(int(self.index.row_ids[row]) for row in members)))
        return tuple(slots)

    def _row_at(self, place: int) -> int:
        epoch, offset = divmod(place, len(self.index))
        starts, windows = self._epoch_windows(epoch)
        window = int(np.searchsorted(starts, offset, side="right")) - 1
        return int(self._window_rows(epoch, window, windows[window])[offset - starts[window]])

    def _make_epoch_windows(self, epoch: int) -> tuple[NDArray[np.int64], tuple[tuple[int, ...], ...]]:
        order = self._random(epoch, 0).permutation(len(self._shards))
        windows = tuple(
            tuple(int(shard) for shard in order[i : i + self.window_shards])
            for i in range(0, len(order), self.window_shards)
        )
        sizes = [int(self._shard_rows[list(window)].sum()) for window in windows]
        return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64), windows

    def _make_window_rows(self, epoch: int, window: int, shards: tuple[int, ...]) -> NDArray[np.int64]:
        rows = np.concatenate([np.arange(self._shard_start[s], self._shard_start[s + 1]) for s in shards])
        return self._random(epoch, 1 + window).permutation(rows)

    def _random(self, epoch: int, stream: int) -> np.random.Generator:
        key = hashlib.blake2b(f"{self.index.snapshot}/{self.seed}".encode(), digest_size=16).digest()
        counter = np.array([0, 0, stream, epoch], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype=np.uint64), counter=counter))


def deal(loads: NDArray[np.float64], hands: int) -> list[list[int]]:
    """Deals items into `hands` groups of near-equal count so that the largest load of any module stays small.

    Greedy, heaviest item first (longest processing time first, Graham 1969), to the group with room where the sum of
    squared loads grows least. Ties go to the lower group, so the result is a function of the input alone.

    Args:
        loads: float64 [items, modules], each module in units of its mean item.
        hands: number of groups; counts differ by at most one.

    Returns:
        Item positions of each group.
    """
    items = len(loads)
    room = [items // hands + (1 if i < items % hands else 0) for i in range(hands)]
    groups: list[list[int]] = [[] for _ in range(hands)]
    carried = np.zeros((hands, loads.shape[1] if loads.ndim == 2 else 1))
    for item in np.argsort(-loads.sum(axis=1), kind="stable"):
        open_hands = [i for i in range(hands) if len(groups[i]) < room[i]]
        growth = carried[open_hands] @ loads[item]
        best = open_hands[int(np.argmin(growth))]
        groups[best].append(int(item))
        carried[best] += loads[item]
    return groups
