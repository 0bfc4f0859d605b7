"""Which rows a training step reads, and which rank computes them: a pure function of gold snapshot, seed and step.

A global batch is a fixed number of rows in micro-batch slots. The world size only decides which rank computes which
slot, so any number of ranks sees the same samples, and a run resumes at any step without replaying the past.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasmo.data.balance import deal
from elasmo.data.index import MODULES, GoldIndex
from elasmo.data.mixture import MixtureSchedule, Weights
from elasmo.data.order import ShardOrder
from elasmo.data.packing import NO_CAPS, Caps, pack


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

    Every source is walked in its own shuffled order (`order.ShardOrder`), each at the pace that its weight asks for
    (`mixture.MixtureSchedule`); both find step s without the steps before it.

    Args:
        index: the rows, of one source or of several.
        seed: of the run.
        global_batch: rows of a step.
        micro_batch: rows of a slot.
        window_shards: shards whose rows are mixed.
        weights: of each source of the index, in tokens; may be left out for a single one.
        caps: on the tokens of a slot. With any, `micro_batch` is the mean number of rows of a slot, at most, and a step
            whose rows need it has more slots.

    Raises:
        ValueError: a source without rows, weights that cannot be, or a micro-batch that does not divide the batch.
        PackingError: a row exceeds a cap by itself.
    """

    def __init__(
        self,
        index: GoldIndex,
        seed: int,
        global_batch: int,
        micro_batch: int,
        window_shards: int = 4,
        weights: tuple[Weights, ...] = (),
        caps: Caps = NO_CAPS,
    ) -> None:
        for source in index.sources:
            if source.rows == 0:
                raise ValueError(f"Gold snapshot {source.snapshot} has no row in this split; ingest more data.")
        if global_batch % micro_batch:
            raise ValueError(f"micro_batch={micro_batch} must divide global_batch={global_batch}.")
        weights = weights or ({0: 1.0},) * len(index.sources)
        if len(weights) != len(index.sources):
            raise ValueError(f"{len(weights)} weights for {len(index.sources)} sources; give each source one.")
        self.index = index
        self.seed = seed
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.window_shards = window_shards
        self.weights = weights
        self.caps = caps
        caps.check(index.costs, index.row_ids)
        parts = [slice(source.first, source.first + source.rows) for source in index.sources]
        self._orders = [
            ShardOrder(source.snapshot, seed, index.shard[part], window_shards)
            for source, part in zip(index.sources, parts, strict=True)
        ]
        means = [max(1e-9, float(index.costs[part, 0].mean(dtype=np.float64))) for part in parts]
        self.mixture = MixtureSchedule(means, weights, global_batch)
        self._step_slots = lru_cache(maxsize=64)(self._make_slots)

    def __reduce__(self) -> tuple[type[StepPlan], tuple[Any, ...]]:
        return StepPlan, (
            self.index,
            self.seed,
            self.global_batch,
            self.micro_batch,
            self.window_shards,
            self.weights,
            self.caps,
        )

    def rows(self, step: int) -> NDArray[np.int64]:
        """Positions in the index of the global batch of `step`, int64 [global_batch]."""
        drawn = self.mixture.drawn(step)
        places = zip(self.index.sources, self._orders, drawn, self.mixture.counts(step), strict=True)
        return np.concatenate([source.first + order.take(first, count) for source, order, first, count in places])

    def slots(self, step: int) -> tuple[Slot, ...]:
        """The slots of `step`: the global batch dealt out so that every module's load is even over slots."""
        return self._step_slots(step)

    def assign(self, step: int, world: int) -> tuple[tuple[Slot, ...], ...]:
        """Slots of each rank, in computing order; ranks may differ by one slot where `world` does not divide them."""
        slots = self.slots(step)
        loads = _in_means(np.array([self._tokens(slot.rows) for slot in slots]))
        return tuple(tuple(slots[i] for i in sorted(group)) for group in deal(loads, world))

    def micro_steps(self, step: int, world: int) -> int:
        """Micro-batches a rank runs in a step: ranks with fewer slots run an empty one, so that collectives match."""
        return -(-len(self.slots(step)) // world)

    def target_tokens(self, step: int) -> int:
        """Tokens that count in the loss of the whole global batch of `step`."""
        return sum(self.slot_targets(slot) for slot in self.slots(step))

    def slot_targets(self, slot: Slot) -> int:
        """Tokens of a slot that count in the loss."""
        return int(self.index.target_tokens[list(slot.rows)].sum(dtype=np.int64))

    def receipt(self, step: int, substituted: Mapping[int, int] | None = None) -> str:
        """What the receipt of `step` must be once it is committed.

        Args:
            substituted: row ids that did not decode -> those that were read in their place.
        """
        swap = substituted or {}
        read = [slot_digest(s.step, s.slot, (swap.get(row, row) for row in s.row_ids)) for s in self.slots(step)]
        return step_receipt(read)

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

    def _make_slots(self, step: int) -> tuple[Slot, ...]:
        rows = self.rows(step)
        costs, fewest = self.index.costs[rows].astype(np.float64), self.global_batch // self.micro_batch
        loads = _in_means(costs)
        groups = pack(costs, loads, fewest, self.caps) if self.caps else deal(loads, fewest)
        slots = []
        for number, group in enumerate(groups):
            members = tuple(int(rows[i]) for i in sorted(group))
            slots.append(Slot(step, number, members, tuple(int(self.index.row_ids[row]) for row in members)))
        return tuple(slots)


def _in_means(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Costs [items, modules] in units of each module's mean item.

    Of these items, not of the whole index: a dataset that joins a run must not deal out its past steps anew.
    """
    loads: NDArray[np.float64] = costs / np.maximum(costs.mean(axis=0), 1e-9)
    return loads
