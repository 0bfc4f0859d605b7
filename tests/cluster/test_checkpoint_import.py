"""A DeepSpeed checkpoint becomes a run that `fit` takes up where DeepSpeed left it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from elasmo.config import Config
from elasmo.data.stream import open_gold
from elasmo.model.fragments import CheckpointError, FragmentReader
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.train import fit, retention
from elasmo.train.checkpoint_import import import_run
from elasmo.train.local_cluster import LocalCluster
from elasmo.train.run_folder import events
from tests.gloo import run_ranks

STEPS = 3


def theirs(rank: int, world: int, config: Config, vocab_size: int, fields: Any, folder: str) -> None:
    """A model of ours in a plain DeepSpeed loop, as a user has one."""
    import deepspeed

    from elasmo.train import deepspeed_adapter

    deepspeed_adapter.init_distributed(60)
    model = MultimodalDecoder(config.model, vocab_size, fields)
    model.init_weights(config.seed)
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 100_000},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings, dist_init_required=False)
    for _ in range(STEPS):
        engine.backward(sum(parameter.square().sum() for parameter in engine.module.parameters()))
        engine.step()
    engine.save_checkpoint(folder)


@pytest.mark.full
def test_an_imported_checkpoint_is_taken_up(tiny: Config, tmp_path: Path) -> None:
    changes = {"steps": STEPS + 2, "checkpoint_every": 1, "keep_checkpoints": 9, "eval_every": 99}
    workers = tiny.train.workers.model_copy(update={"max": 1})
    store = tmp_path / "elsewhere"
    train = tiny.train.model_copy(update={**changes, "workers": workers, "checkpoint_storage": str(store)})
    config = tiny.model_copy(update={"train": train, "data": tiny.data.model_copy(update={"engine": "direct"})})
    processor = open_gold(config).processor()
    folder = tmp_path / "deepspeed"
    run_ranks(2, theirs, config, processor.vocab_size, processor.table_fields, str(folder))
    imported = import_run(folder, config)
    reader = FragmentReader(store / imported.run_id / retention.folder_name(STEPS))
    reader.verify()
    with LocalCluster(config.ray, dashboard=False) as cluster:
        cluster.connect()
        result = fit(config, run_id=imported.run_id)
    assert [event["step"] for event in events(result.folder, "step")] == [STEPS + 1, STEPS + 2]
    assert events(result.folder, "attempt")[0]["start_step"] == STEPS
    names = [place.name for place in retention.committed(store / imported.run_id)]
    assert names == [retention.folder_name(step) for step in (STEPS, STEPS + 1, STEPS + 2)]
    manifest = FragmentReader(store / imported.run_id / names[-1]).manifest
    assert manifest.meta["optimizer_step"] == STEPS + 2 and manifest.meta["cursor"]["step"] == STEPS + 2
    checkpoints = events(result.folder, "checkpoint")
    assert [event["step"] for event in checkpoints] == [STEPS + 1, STEPS + 2]
    assert all(event["bytes"] > 0 and event["written"] > 0 <= event["waited"] for event in checkpoints)


def test_another_models_checkpoint_is_refused_before_a_run_is_made(tiny: Config, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no DeepSpeed checkpoint"):
        import_run(tmp_path, tiny)
    assert not (Path(tiny.train.storage)).exists()
