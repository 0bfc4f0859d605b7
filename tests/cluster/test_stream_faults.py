"""Faults of streams and of ranks that read them, on a real cluster: slow readers, rows that hang, a failing rank."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
import torch.distributed as dist
from ray._private.internal_api import get_memory_info_reply, get_state_from_address

from elasmo.config import Config, load
from elasmo.data.gold import Gold, GoldError, GoldRow
from elasmo.data.stream import TRAIN, PlanDataConfig, decode_slots, from_block, from_shard, make_plan, open_gold
from elasmo.data.stream import _block as block_of
from elasmo.ingest.ingest import ingest
from elasmo.parallel import planner
from elasmo.train import ray_adapter
from tests.cluster.conftest import TINY
from tests.cluster.test_stream import Window
from tests.pets import line, png, write_dataset

MB = 1 << 20
LARGE = "model.vision={hidden: 16, layers: 1, heads: 2, ffn: 32, image_size: 512, patch: 64, channels: 3}"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Pictures that decode to 768 kB each, 3 MB a slot."""
    folder = tmp_path_factory.mktemp("pictures")
    rows = [line(f"row-{n}", {"image": f"{n}.png"}, split="train" if n < 24 else "heldout") for n in range(28)]
    write_dataset(folder / "large", list(rows), {f"{n}.png": png(n) for n in range(28)})
    sizes = ["train.steps=12", "train.warmup_steps=1", "data.lookahead_mb=32"]
    config = load(None, [*TINY, LARGE, *sizes, f"data.lake={folder}", f"data.dataset={folder / 'large'}"], {})
    ingest(config, folder / "large")
    return config


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, object_store_memory=100 * MB, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.full
def test_a_slow_reader_fills_its_budget_and_no_more(session: None, pictures: Config) -> None:
    """ray-project/ray#33627: blocks made faster than they are read fill the store and are spilled to disk."""
    window = Window.options(name="slow", namespace="faults").remote(0)
    readers = functools.partial(planner.slot_readers, pictures.train)
    shard = PlanDataConfig(pictures, "slow", "faults", readers).configure({}, 1, None, None)[0][TRAIN]
    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    used, spilled, done = [0], [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            stats = get_memory_info_reply(state).store_stats
            used.append(stats.object_store_bytes_used)
            spilled.append(stats.spilled_bytes_total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    decoded = 0
    try:
        for number, rows in enumerate(from_shard(shard)):
            decoded += sum(sample.images.nbytes for sample in rows.samples)
            time.sleep(2.0 if number == 0 else 0.25)
    finally:
        done.set()
        watcher.join()
    assert decoded == 12 * 16 * 512 * 512 * 3 > 100 * MB  # more than the whole store holds
    # The store takes half a second to free what was read, and on a busy machine more: a block above the 32 MB.
    assert 8 * MB < max(used) <= 36 * MB
    assert max(spilled) == 0
    ray.kill(window)


def test_a_row_that_is_never_read_is_replaced_and_named(session: None, pictures: Config) -> None:
    """NVIDIA/Megatron-Energon#119: a reader that sleeps forever on one sample holds up the whole run."""
    gold = open_gold(pictures)
    slot = make_plan(pictures, gold).slots(0)[0]
    stuck = slot.row_ids[1]

    @ray.remote(num_cpus=0.25)
    def task(block: Any) -> Any:
        whole = Gold._row

        def reads(self: Gold, row_id: int) -> GoldRow:
            if row_id == stuck:
                time.sleep(1000)
            return whole(self, row_id)

        Gold._row = reads  # type: ignore[method-assign]
        try:
            data = gold.pinned(pictures.data).model_copy(update={"row_timeout_s": 0.5})
            return decode_slots(block, data, "answers")
        finally:
            Gold._row = whole  # type: ignore[method-assign]

    (rows,) = from_block(ray.get(task.remote(block_of([slot])), timeout=60))
    (swap,) = rows.substituted
    assert swap.planned == stuck and "took more than 0.5 s (data.row_timeout_s)" in swap.reason
    assert rows.row_ids == tuple(swap.read if row == stuck else row for row in slot.row_ids)


def test_the_error_of_one_rank_ends_all_at_once_and_is_the_one_that_is_told(session: None, tmp_path: Path) -> None:
    """ray-project/ray#42008, ray#42601: one rank raises, the others wait for it, and theirs is the error shown."""
    raised = tmp_path / "raised"

    def loop() -> None:
        dist.barrier()
        if dist.get_rank() == 1:
            raised.touch()
            raise GoldError("Row 7 of rank 1 is no picture.")
        dist.all_reduce(torch.zeros(1))  # rank 1 never comes

    workers = load(None, ["train.workers.min=2", "train.workers.max=2"], {}).train.workers
    ray_adapter.apply_timeouts(workers)
    trainer = ray_adapter.ElasticTrainer(
        loop,
        torch_config=ray_adapter.torch_config(workers),
        scaling_config=ray_adapter.scaling_config(workers, ray.cluster_resources()),
        run_config=ray.train.RunConfig(storage_path=str(tmp_path), failure_config=ray_adapter.failure_config(workers)),
    )
    with pytest.raises(Exception) as caught:
        trainer.fit()
    seconds = time.time() - raised.stat().st_mtime
    assert ray_adapter.user_error(caught.value) == "Row 7 of rank 1 is no picture."
    assert seconds < 5
