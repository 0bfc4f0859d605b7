"""Faults of other loaders on small or uneven data that must not happen here, each named by its upstream thread."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from elasmo.config import Config
from elasmo.data.gold import Gold
from elasmo.data.plan import StepPlan
from tests.sources.test_tables import parts, write_tar
from tests.sources.twelve import contract, ingested, twelve

RENAME = {"__key__": "key", "png": "picture", "txt": "caption", "cls": "species"}


def shards(folder: Path, *records: list[dict[str, Any]]) -> tuple[Gold, Config]:
    """The gold of a dataset of WebDataset shards, all of it training rows."""
    folder.mkdir()
    for number, rows in enumerate(records):
        write_tar(folder / f"{number}.tar", [parts(row) for row in rows])
    contract(folder, {"format": "webdataset", "path": "*.tar", "rename": RENAME}, heldout_fraction=0.0)
    _, config = ingested(folder)
    return Gold.open(config.data.lake, folder), config


def test_one_shard_feeds_four_ranks(tmp_path: Path) -> None:
    """webdataset#65: shards are split over ranks and workers, so a rank beyond the number of shards gets nothing.

    Here slots of rows are dealt, not shards: one shard of twelve rows gives each of four ranks a micro-batch a step.
    """
    gold, _ = shards(tmp_path / "pets", twelve())
    plan = StepPlan(gold.index("train"), seed=0, global_batch=4, micro_batch=1)
    seen: Counter[int] = Counter()
    for step in range(3):
        ranks = plan.assign(step, world=4)
        assert [len(slots) for slots in ranks] == [1, 1, 1, 1]
        seen.update(row for slots in ranks for slot in slots for row in slot.row_ids)
    assert seen == Counter(range(12))


def test_uneven_shards_give_every_rank_the_same_number_of_micro_batches(tmp_path: Path) -> None:
    """webdataset#65: shards that the number of ranks does not divide give ranks epochs of different length."""
    gold, _ = shards(tmp_path / "pets", twelve()[:1], twelve()[1:3], twelve()[3:])
    plan = StepPlan(gold.index("train"), seed=0, global_batch=4, micro_batch=2)
    for world in (1, 2):
        assert {len(slots) for step in range(6) for slots in plan.assign(step, world)} == {2 // world}
    rows = [row for step in range(3) for slot in plan.slots(step) for row in slot.row_ids]
    assert sorted(rows) == list(range(12))


def test_fewer_rows_than_a_batch_are_all_read(tmp_path: Path) -> None:
    """streaming#535: rows of a dataset that is smaller than a batch must not be lost.

    An epoch's tail is filled up from the next one: five places in a row of the plan hold each of the five rows once.
    """
    gold, _ = shards(tmp_path / "pets", twelve()[:5])
    plan = StepPlan(gold.index("train"), seed=0, global_batch=8, micro_batch=2)
    places = [int(row) for step in range(5) for row in plan.rows(step)]
    assert [sorted(places[i : i + 5]) for i in range(0, 40, 5)] == [[0, 1, 2, 3, 4]] * 8
    first = [row for slots in plan.assign(0, world=2) for slot in slots for row in slot.row_ids]
    assert set(first) == {0, 1, 2, 3, 4} and len(first) == 8
