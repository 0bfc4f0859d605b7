"""Ray Data delivers the plan's slots in order, from any step, with the very rows that reading directly gives."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest
import ray

from elasmo.config import Config
from elasmo.data.plan import Slot
from elasmo.data.stream import TRAIN, PlanDataConfig, SlotRows, direct, from_shard, groups, make_plan, open_gold
from elasmo.model.encoded import Encoded
from elasmo.parallel import planner

STEPS = 5


@ray.remote(num_cpus=0)
class Window:
    """Stands where the run-state actor does, and answers what `configure` asks it."""

    def __init__(self, start: int) -> None:
        self.start = start

    def window(self) -> tuple[int, int]:
        return 1, self.start


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def same(ours: SlotRows, theirs: SlotRows) -> bool:
    if (ours.step, ours.slot, ours.row_ids, ours.modalities) != (
        theirs.step,
        theirs.slot,
        theirs.row_ids,
        theirs.modalities,
    ):
        return False
    for mine, yours in zip(ours.samples, theirs.samples, strict=True):
        for field in fields(Encoded):
            a, b = getattr(mine, field.name), getattr(yours, field.name)
            pairs = zip(a, b, strict=True) if field.name == "audio" else [(a, b)]
            if not all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in pairs):
                return False
    return True


def test_groups_of_slots_start_with_one_and_grow_to_the_limit() -> None:
    slots = [Slot(step, number, (), ()) for step in range(4) for number in range(5)]
    made = list(groups(iter(slots), lambda first: 8))
    assert [slot for group in made for slot in group] == slots
    assert [len(group) for group in made] == [1, 1, 2, 4, 8, 4]
    assert all(len(group) == 1 for group in groups(iter(slots), lambda first: 1))


@pytest.mark.parametrize(("world", "start", "decoders"), [(1, 0, 1), (2, 2, 1), (3, 1, 1), (1, 0, 3)])
def test_the_stream_equals_direct_reading(session: None, tiny: Config, world: int, start: int, decoders: int) -> None:
    config = tiny.model_copy(
        update={
            "train": tiny.train.model_copy(update={"stop_after": STEPS}),
            "data": tiny.data.model_copy(update={"decode_workers": decoders}),
        }
    )
    name = f"window-{world}-{start}-{decoders}"
    window = Window.options(name=name, namespace="test-stream").remote(start)
    shards = PlanDataConfig(
        config, name, "test-stream", functools.partial(planner.slot_readers, config.train)
    ).configure({}, world, None, None)
    gold = open_gold(config)
    plan = make_plan(config, gold)
    seen = set()
    for rank in range(world):
        streamed = list(from_shard(shards[rank][TRAIN]))
        read = list(direct(plan, gold, rank, world, start, STEPS))
        assert [(rows.step, rows.slot) for rows in streamed] == [(rows.step, rows.slot) for rows in read]
        assert all(same(ours, theirs) for ours, theirs in zip(streamed, read, strict=True))
        seen |= {(rows.step, rows.slot) for rows in streamed}
    assert seen == {(step, slot) for step in range(start, STEPS) for slot in range(config.train.slots)}
    ray.kill(window)
