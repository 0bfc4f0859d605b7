"""Streams planned micro-batches into training ranks: through Ray Data, or directly in the rank as the oracle.

Both engines yield the same rows of the same slots in the same order; the receipts of a run do not tell them apart.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray
import ray.data
from ray.data import DataContext, DataIterator, Dataset, ExecutionResources
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from ray.train import DataConfig as RayDataConfig

from elasmo.config import Config, DataConfig, LossOn, TrainConfig
from elasmo.data.gold import GoldRow, GoldRowError
from elasmo.data.gold_mixture import GoldMixture, open_mixture
from elasmo.data.index import GoldIndex
from elasmo.data.packing import Caps
from elasmo.data.plan import Slot, StepPlan
from elasmo.data.row_deadline import RowDeadline, row_deadline
from elasmo.data.substitute import Substitution, read_or_substitute
from elasmo.model.encoded import Encoded

if TYPE_CHECKING:
    from ray.actor import ActorHandle

TRAIN = "train"
"""Name of the dataset in `ray.train.get_dataset_shard`."""

GROUP = pa.list_(pa.struct([("step", pa.int64()), ("slot", pa.int32()), ("row_ids", pa.list_(pa.int64()))]))
"""Slots that are decoded together and handed over in one block."""

BLOCKS = 8
"""Blocks that the look-ahead has room for."""
HELD = 4
"""Blocks that Ray Data does not count: the one that the rank is reading, the next, one on its way, and one that was
read but is not freed yet."""

Window = tuple[int, int]
"""(attempt, first step): where the current worker group starts to read."""

Readers = Callable[[int], list[tuple[int, int]]]
"""Ranks -> (part, parts) for each rank."""


@dataclass(frozen=True)
class SlotRows:
    """A slot as it arrived: the rows that were read, decoded, in collating order, and which of them are substitutes."""

    step: int
    slot: int
    row_ids: tuple[int, ...]
    modalities: tuple[str, ...]
    samples: tuple[Encoded, ...]
    substituted: tuple[Substitution, ...] = ()


def make_plan(config: Config, gold: GoldMixture) -> StepPlan:
    """The step plan of a run: the same on every process that has the config and the gold snapshot."""
    train, data = config.train, config.data
    return StepPlan(
        gold.index("train"),
        config.seed,
        train.global_batch,
        train.micro_batch,
        data.shuffle_window_shards,
        gold.weights,
        slot_caps(train),
    )


def slot_caps(train: TrainConfig) -> Caps:
    return Caps(train.slot_tokens, train.slot_encoder_tokens)


def open_gold(config: Config) -> GoldMixture:
    """The gold snapshots that the config names, or the datasets' newest, with the targets of `train.loss_on`.

    Raises:
        GoldError: one is absent or damaged, or they do not go together.
    """
    return open_mixture(config.data, config.train.loss_on)


def direct(plan: StepPlan, gold: GoldMixture, rank: int, world: int, first_step: int, steps: int) -> Iterator[SlotRows]:
    """The slots of one rank, read and decoded in this process."""
    for slot in _rank_slots(plan, rank, world, first_step, steps):
        rows, substituted = read_or_substitute(lambda row: gold.read([row])[0], lambda: plan.index, slot.row_ids)
        yield SlotRows(
            slot.step,
            slot.slot,
            tuple(row.row_id for row in rows),
            tuple(row.modality for row in rows),
            tuple(row.encoded for row in rows),
            tuple(substituted),
        )


def from_shard(shard: DataIterator) -> Iterator[SlotRows]:
    """The slots that Ray Data delivers to this rank."""
    for block in shard.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
        yield from from_block(block)


def from_block(block: pa.Table) -> Iterator[SlotRows]:
    """The slots of a block as `decode_slots` made it."""
    for slot in itertools.chain.from_iterable(block.column("slots").to_pylist()):
        rows = slot["rows"]
        yield SlotRows(
            slot["step"],
            slot["slot"],
            tuple(row["row_id"] for row in rows),
            tuple(row["modality"] for row in rows),
            tuple(Encoded.from_row(row) for row in rows),
            tuple(Substitution(**replaced) for replaced in json.loads(slot["substituted"])),
        )


class PlanDataConfig(RayDataConfig):
    """Hands every rank one ordered stream of its slots.

    Ray Train sends this object to a new dataset manager at every start of the worker group and calls `configure`
    there once rank 0 asks for its shard. By then the ranks have agreed on the step to resume from and published it,
    so the window is asked from the run's state, not fixed at submission.

    Args:
        readers: for a number of ranks, which part of how many parts of the slots each of them reads. Ranks that compute
            the same slot read the same part, each through a stream of its own.
    """

    def __init__(self, config: Config, run_state: str, namespace: str, readers: Readers) -> None:
        super().__init__(datasets_to_split=[TRAIN])
        self.readers = readers
        self.config = config
        self.run_state = run_state
        self.namespace = namespace

    def configure(
        self,
        datasets: dict[str, Dataset],
        world_size: int,
        worker_handles: list[ActorHandle] | None,
        worker_node_ids: list[str] | None,
        **_: Any,
    ) -> list[dict[str, DataIterator]]:
        """One iterator a rank, starting at the published step."""
        state = ray.get_actor(self.run_state, namespace=self.namespace)
        window: Window = ray.get(state.window.remote(), timeout=30)
        gold = open_gold(self.config)
        streams = (self._stream(gold, part, parts, window) for part, parts in self.readers(world_size))
        return [{TRAIN: stream.iterator()} for stream in streams]

    def _stream(self, gold: GoldMixture, rank: int, world: int, window: Window) -> Dataset:
        data = self.config.data
        attempt, first_step = window
        pinned = self.config.model_copy(update={"data": gold.pinned(data)})
        source = PlanSource(pinned, rank, world, first_step, self.config.train.last_step)
        DataContext.get_current().enable_progress_bars = False
        # One decoder: Ray Data joins reading the plan and decoding into one task for the whole stream. Several: the
        # limit keeps the two apart, and every group of slots is a task of its own.
        several = ray.data.TaskPoolStrategy(size=data.decode_workers) if data.decode_workers > 1 else None
        stream = ray.data.read_datasource(source, override_num_blocks=1, num_cpus=data.decode_cpus).map_batches(
            decode_slots,
            fn_args=(gold.pinned(data), gold.loss_on),
            batch_size=None,
            batch_format="pyarrow",
            zero_copy_batch=True,
            compute=several,
            num_cpus=data.decode_cpus,
        )
        stream.set_name(f"{TRAIN}-attempt{attempt}-rank{rank}")
        # Ray Data joins small blocks until they reach this size. A group of slots is one row, and a row is never cut:
        # with the smallest size every group is a block of its own, and flows on as soon as it is made.
        stream.context.target_max_block_size = 1
        options = stream.context.execution_options
        options.preserve_order = True
        options.resource_limits = ExecutionResources(
            object_store_memory=(data.lookahead_mb << 20) * (BLOCKS - HELD) // BLOCKS
        )
        return stream


class PlanSource(Datasource):
    """A lazy source that yields the row ids of a rank's slots from a step on, a row for each group of them.

    The plan is made where the source is read: its index may have hundreds of megabytes, a config has a few kilobytes.
    """

    def __init__(self, config: Config, rank: int, world: int, first_step: int, steps: int) -> None:
        super().__init__()
        self.config = config
        self.place = (rank, world, first_step, steps)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        """One task: an order that is kept has one producer."""
        config, place = self.config, self.place

        def read() -> Iterator[pa.Table]:
            gold = _opened(config.data.model_dump_json(), config.train.loss_on)
            slots = _rank_slots(make_plan(config, gold.gold), *place)
            yield from map(_block, groups(slots, functools.partial(_fitting, gold, config.data)))

        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(read, metadata)]

    def estimate_inmemory_data_size(self) -> int | None:
        return None


def decode_slots(block: pa.Table, data: DataConfig, loss_on: LossOn) -> pa.Table:
    """Reads and decodes the rows of slots: what Ray Data runs, as a task in a process that has done it before.

    An actor would have to start, and its imports take longer than all else before the first micro-batch.
    """
    gold = _opened(data.model_dump_json(), loss_on)
    groups_of_slots = block.column("slots").to_pylist()
    return pa.Table.from_pylist([{"slots": [_decoded(gold, slot) for slot in group]} for group in groups_of_slots])


@lru_cache(maxsize=2)
def _opened(data: str, loss_on: LossOn) -> OpenGold:
    return OpenGold(DataConfig.model_validate_json(data), loss_on)


class OpenGold:
    """Gold, and its index once a row needs a substitute."""

    def __init__(self, data: DataConfig, loss_on: LossOn) -> None:
        self.gold = open_mixture(data, loss_on)
        self.timeout_s = data.row_timeout_s

    def row(self, row_id: int) -> GoldRow:
        """The row; raises GoldRowError also when it takes longer than `data.row_timeout_s`."""
        try:
            with row_deadline(self.timeout_s):
                return self.gold.read([row_id])[0]
        except RowDeadline as error:
            raise GoldRowError(f"Row {row_id} of gold {self.gold.snapshot}: {error}") from None

    @cached_property
    def index(self) -> GoldIndex:
        return self.gold.index("train")


def _decoded(gold: OpenGold, slot: Mapping[str, Any]) -> dict[str, Any]:
    rows, substituted = read_or_substitute(gold.row, lambda: gold.index, slot["row_ids"])
    decoded = [{"row_id": row.row_id, "modality": row.modality, **row.encoded.to_row()} for row in rows]
    # JSON: an Arrow column of lists that are nearly always empty has no type to be sure of.
    replaced = json.dumps([vars(substitution) for substitution in substituted])
    return {"step": slot["step"], "slot": slot["slot"], "rows": decoded, "substituted": replaced}


def _rank_slots(plan: StepPlan, rank: int, world: int, first_step: int, steps: int) -> Iterator[Slot]:
    for step in range(first_step, steps):
        yield from plan.assign(step, world)[rank]


def groups(slots: Iterator[Slot], most: Callable[[Slot], int]) -> Iterator[list[Slot]]:
    """Slots in groups of 1, 1, 2, 4 and so on: the first micro-batch comes early, the rest cheaply.

    Args:
        most: largest group, for the first slot; asked for once that one is on its way.
    """
    first = list(itertools.islice(slots, 1))
    if not first:
        return
    yield first
    limit, size, made = most(first[0]), 1, 1
    while group := list(itertools.islice(slots, size)):
        yield group
        made += len(group)
        size = min(limit, made)


def _fitting(gold: OpenGold, data: DataConfig, slot: Slot) -> int:
    """Slots of a block, as large as this one, so that the look-ahead holds `BLOCKS` of them; at least one."""
    try:
        decoded = sum(gold.row(row_id).encoded.nbytes for row_id in slot.row_ids)
    except GoldRowError:
        return 1
    return max(1, min(data.block_slots, (data.lookahead_mb << 20) // (BLOCKS * max(1, decoded))))


def _block(group: Iterable[Slot]) -> pa.Table:
    slots = [{"step": slot.step, "slot": slot.slot, "row_ids": slot.row_ids} for slot in group]
    return pa.table({"slots": pa.array([slots], GROUP)})
