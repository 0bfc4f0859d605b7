"""Optimizer state, and weights, that ZeRO keeps in host memory: the same steps, and checkpoints that others read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from elasmo.config import TrainConfig
from elasmo.parallel.layout import Layout
from elasmo.train import checkpoint, deepspeed_adapter, retention
from tests.gloo import run_ranks
from tests.parallel import layout_run, oracle
from tests.parallel.test_checkpoint_layouts import SAVED, resume, write
from tests.parallel.test_every_layout import TOLERANCE, name

KIND = "multimodal"


def train(rank: int, world: int, layout: Layout, offload: str, root: str) -> dict[str, float]:
    """Steps to the checkpoint, into an engine of its own from it, and the last step there."""
    deepspeed_adapter.init_distributed(60)
    dense, worst = oracle.dense_run(KIND), {}  # type: oracle.DenseRun, dict[str, float]
    engine = layout_run.start(KIND, layout, offload=offload)
    for step in range(oracle.STEPS):
        if step == SAVED:
            write(engine, root, rank)
            engine.deepspeed.destroy()
            engine = layout_run.start(KIND, layout, offload=offload)
            checkpoint.load(engine.deepspeed, Path(root) / retention.folder_name(SAVED), engine.shards, engine.shapes)
        loss = layout_run.run_step(engine, KIND, step)
        layout_run.note(worst, "loss", abs(loss - dense.losses[step]) / dense.losses[step])
        layout_run.compare_owned(engine, dense, step, worst)
    assert engine.deepspeed.zero_use_cpu_optimizer()
    assert (engine.deepspeed.zero_offload_param() is not None) == (offload == "all")
    assert {owned.exp_avg.device.type for owned in deepspeed_adapter.owned_slices(engine.deepspeed)} == {"cpu"}
    return worst


@pytest.mark.parametrize(
    ("layout", "offload"),
    [
        (Layout(dp=2, zero_stage=2), "optimizer"),
        pytest.param(Layout(dp=2, tp=2, zero_stage=1), "optimizer", marks=pytest.mark.full),
        pytest.param(Layout(dp=2, pp=2, zero_stage=1), "optimizer", marks=pytest.mark.full),
        pytest.param(Layout(dp=2, zero_stage=3), "optimizer", marks=pytest.mark.full),
        pytest.param(Layout(dp=2, tp=2, zero_stage=3), "all", marks=pytest.mark.full),
    ],
    ids=name,
)
def test_offloaded_training_equals_the_dense_run_and_resumes_anywhere(
    tmp_path: Path, layout: Layout, offload: str
) -> None:
    runs = run_ranks(layout.world, train, layout, offload, str(tmp_path))
    runs += run_ranks(1, resume, KIND, Layout(zero_stage=1), str(tmp_path))
    for worst in runs:
        wrong = {part: value for part, value in worst.items() if not value <= TOLERANCE}
        assert not wrong, f"{layout} {offload}: {wrong}"


@pytest.mark.parametrize(("stage", "offload"), [(0, "optimizer"), (2, "all")])
def test_what_a_stage_cannot_offload_is_refused(stage: int, offload: str) -> None:
    with pytest.raises(ValidationError, match=f"offload={offload} needs zero_stage . or more, not {stage}"):
        TrainConfig(zero_stage=stage, offload=offload)
