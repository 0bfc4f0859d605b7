"""Faults that other systems' users reported of data order, resume and elasticity, each by name, on the step plan.

What those systems keep as state that moves (an iterator, a queue, leases), a run here asks of a pure function.
"""

from __future__ import annotations

import dataclasses
import json
import time

import numpy as np
import pytest

from elasmo.data.index import GoldIndex
from elasmo.data.plan import StepPlan, slot_digest
from elasmo.train.evaluate import shares
from tests.data.test_plan import make_index


def receipts(plan: StepPlan, steps: range, world: int) -> list[str]:
    """Receipts of steps as `world` ranks commit them: each computes its own slots, and the slots are put together."""
    from elasmo.data.plan import step_receipt

    found = []
    for step in steps:
        digests = {
            slot.slot: slot_digest(slot.step, slot.slot, slot.row_ids) for r in plan.assign(step, world) for slot in r
        }
        found.append(step_receipt([digests[slot] for slot in sorted(digests)]))
    return found


def test_a_run_over_4_then_2_then_3_workers_reads_what_an_undisturbed_one_reads() -> None:
    """ray-project/ray#48224, ray#37633: after a restart the stream begins at its first row, or skips by reading."""
    index = make_index(997)
    undisturbed = receipts(StepPlan(index, 5, 24, 4), range(90), 1)
    parts = ((4, range(31)), (2, range(31, 58)), (3, range(58, 90)))
    assert [r for world, steps in parts for r in receipts(StepPlan(index, 5, 24, 4), steps, world)] == undisturbed


@pytest.mark.parametrize("rows", [96, 100, 24, 7])
def test_a_checkpoint_at_the_very_end_of_an_epoch_goes_on_with_the_next(rows: int) -> None:
    """ray#58658, mosaicml/streaming#869, volcengine/verl#7401: resumed exactly at an epoch's end, a loader is empty,
    starts over, or repeats the epoch."""
    index = make_index(rows)
    whole = StepPlan(index, 1, 12, 4)
    for ends in (rows // 12, -(-rows // 12)):  # the step in which the epoch ends, and the one after
        fresh = StepPlan(index, 1, 12, 4)
        assert np.array_equal(fresh.rows(ends), whole.rows(ends))
    read = np.concatenate([whole.rows(step) for step in range(3 * rows // 12 + 1)])
    for epoch in range(3):
        assert sorted(read[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_resuming_at_sample_ten_million_touches_none_before_it() -> None:
    """huggingface/datasets#7447, pytorch/torchtitan#811, huggingface/accelerate#2606: `skip_first_batches` reads what
    it skips. Here a step far on looks at the rows of a few shards, and at no other."""
    rows = 12_000_000
    virtual = GoldIndex(
        snapshot="virtual",
        row_ids=np.arange(rows),
        shard=(np.arange(rows) // 512).astype(np.int32),
        modalities=("text",),
        modality=np.zeros(rows, dtype=np.int8),
        costs=np.ones((rows, 4), dtype=np.uint16),
        target_tokens=np.ones(rows, dtype=np.uint16),
    )
    plan = StepPlan(virtual, 0, 100, 10)
    began = time.perf_counter()
    rows_of_step = plan.rows(100_000)
    assert time.perf_counter() - began < 1.0
    assert len(set(rows_of_step)) == 100 and len(set(virtual.shard[rows_of_step])) <= 8
    assert plan._orders[0]._shuffled.cache_info().misses <= 2  # windows shuffled: the ones that hold the step


def test_what_was_prefetched_but_not_committed_is_read_again() -> None:
    """ByteDance-Seed/VeOmni#789: a loader's saved state counts batches that workers had fetched ahead, which are lost.
    A run's cursor is its committed step and nothing of the stream's."""
    plan = StepPlan(make_index(300), 0, 12, 4)
    ahead = [slot for step in range(10, 14) for slot in plan.assign(step, 2)[0]]  # fetched by a rank that dies at 11
    again = [slot for step in range(11, 14) for slot in plan.assign(step, 2)[0]]
    assert [slot for slot in ahead if slot.step >= 11] == again


def test_rows_of_a_killed_rank_are_computed_exactly_once() -> None:
    """pytorch/torchft#58: shards leased to a replica that dies are lost for the epoch, or given twice."""
    plan = StepPlan(make_index(240), 2, 24, 4)
    committed = [slot for step in range(5) for rank in plan.assign(step, 4) for slot in rank]
    # Step 5: rank 2 dies after the others have computed theirs. Nothing of it is committed; three ranks do it anew.
    committed += [slot for step in range(5, 10) for rank in plan.assign(step, 3) for slot in rank]
    assert sorted(row for slot in committed for row in slot.rows) == list(range(240))


def test_the_whole_state_of_the_data_is_a_few_numbers() -> None:
    """A loader's checkpoint grows with its workers and buffers; a plan's cursor is the step."""
    plan = StepPlan(make_index(50), 0, 10, 5)
    cursor = {"step": 123_456_789, "seed": plan.seed, "global_batch": 10, "micro_batch": 5, "window": 4}
    assert len(json.dumps(cursor)) < 1000
    assert StepPlan(make_index(50), 0, 10, 5).slots(cursor["step"]) == plan.slots(cursor["step"])


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_101_held_out_rows_are_counted_once_each_on_any_number_of_ranks(world: int) -> None:
    """ray-project/ray#63285: `equal=True` drops the rows that do not divide, so a metric depends on the world size."""
    ids = list(range(101))
    read = [list(shares(ids, 8, rank, world)) for rank in range(world)]
    assert sorted(row for rank in read for chosen in rank for row in chosen) == ids
    assert len({len(rank) for rank in read}) == 1  # every rank takes part in as many collectives


def test_one_huge_shard_is_shared_by_all_ranks() -> None:
    """webdataset/webdataset#65: with fewer shards than ranks some ranks get none."""
    one_shard = dataclasses.replace(make_index(64), shard=np.zeros(64, dtype=np.int32))
    plan = StepPlan(one_shard, 0, 16, 4)
    assert all(len(rank) == 1 for rank in plan.assign(0, 4))
    assert sorted(row for step in range(4) for row in plan.rows(step)) == list(range(64))


def test_five_rows_fill_batches_of_eight() -> None:
    """mosaicml/streaming#535: a dataset smaller than a batch gives nothing, or hangs."""
    plan = StepPlan(make_index(5), 0, 8, 4)
    read = np.concatenate([plan.rows(step) for step in range(5)])
    assert len(read) == 40
    assert all(sorted(read[epoch * 5 : epoch * 5 + 5]) == list(range(5)) for epoch in range(8))
