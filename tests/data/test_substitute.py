"""Substitutes: like the row they replace, the same everywhere, and never without saying so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from elasmo.config import Config, load
from elasmo.data.gold import Gold, GoldRow, GoldRowError
from elasmo.data.plan import slot_digest, step_receipt
from elasmo.data.stream import decode_slots, direct, from_block, make_plan, open_gold
from elasmo.data.substitute import TRIES, read_or_substitute, substitutes
from elasmo.ingest.ingest import ingest
from tests.data.test_plan import make_index


def test_a_substitute_is_like_the_row_in_modality_targets_and_cost() -> None:
    index = make_index(400)
    for position in (0, 17, 399):
        found = list(substitutes(index, int(index.row_ids[position])))
        places = np.searchsorted(index.row_ids, found)
        assert len(set(found)) == len(found) == TRIES and position not in places
        assert set(index.modality[places]) == {index.modality[position]}
        assert set(index.target_tokens[places]) == {index.target_tokens[position]}
        apart = np.abs(index.costs[places].astype(int) - index.costs[position].astype(int)).sum(axis=1)
        assert sorted(apart) == list(apart)
        assert found == list(substitutes(make_index(400), int(index.row_ids[position])))


def test_a_row_that_nothing_can_replace_is_named() -> None:
    index = dataclasses.replace(make_index(3), target_tokens=np.array([1, 2, 3]))

    def read(row_id: int) -> int:
        raise GoldRowError(f"row {row_id} is broken")

    with pytest.raises(GoldRowError, match=f"row {index.row_ids[1]} is broken"):
        read_or_substitute(read, lambda: index, [int(index.row_ids[1])])


def test_many_failures_in_a_row_are_not_papered_over() -> None:
    tried: list[int] = []

    def read(row_id: int) -> int:
        tried.append(row_id)
        raise GoldRowError(f"row {row_id} is broken")

    with pytest.raises(GoldRowError, match="row 100 is broken"):
        read_or_substitute(read, lambda: make_index(400), [100])
    assert len(tried) == 1 + TRIES


@pytest.fixture
def broken(pets: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> tuple[Config, int]:
    """A config and a training row of it that no longer decodes."""
    ingest(config, pets)
    sizes = ["train.global_batch=8", "train.micro_batch=4"]
    own = load(None, [f"data.dataset={pets}", f"data.lake={config.data.lake}", *sizes], {})
    row_id = make_plan(own, open_gold(own)).slots(1)[0].row_ids[2]
    whole = Gold._row

    def reads(self: Gold, number: int) -> GoldRow:
        if number == row_id:
            raise GoldRowError(f"Row {number} is truncated")
        return whole(self, number)

    monkeypatch.setattr(Gold, "_row", reads)
    return own, row_id


def test_the_stream_reads_a_substitute_and_the_receipt_proves_it(broken: tuple[Config, int]) -> None:
    config, row_id = broken
    gold = open_gold(config)
    plan = make_plan(config, gold)
    slots = list(direct(plan, gold, 0, 1, 1, 2))
    (swap,) = [row for slot in slots for row in slot.substituted]
    assert swap.planned == row_id != swap.read and "is truncated" in swap.reason
    assert swap.read == next(substitutes(plan.index, row_id))
    assert row_id not in [row for slot in slots for row in slot.row_ids]
    for slot, planned in zip(slots, plan.slots(1), strict=True):
        assert sum(sample.costs().target for sample in slot.samples) == plan.slot_targets(planned)
    receipt = step_receipt([slot_digest(s.step, s.slot, s.row_ids) for s in slots])
    assert receipt == plan.receipt(1, {row_id: swap.read}) != plan.receipt(1)


def test_what_decode_tasks_give_is_what_reading_directly_gives(broken: tuple[Config, int]) -> None:
    config, _ = broken
    gold = open_gold(config)
    plan = make_plan(config, gold)
    planned = [{"step": 1, "slot": s.slot, "row_ids": list(s.row_ids)} for s in plan.slots(1)]
    made = [pa.table({"slots": [group]}) for group in (planned[:1], planned[1:])]
    blocks = [decode_slots(block, gold.pinned(config.data), "answers") for block in made]
    streamed = [slot for block in blocks for slot in from_block(block)]
    read = list(direct(plan, gold, 0, 1, 1, 2))
    assert [(s.row_ids, s.substituted) for s in streamed] == [(s.row_ids, s.substituted) for s in read]
    assert any(slot.substituted for slot in streamed)
