"""A checkpoint written under one layout goes on under any other as the dense run does, without a conversion step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elasmo.model.fragments import CheckpointError, FragmentReader
from elasmo.parallel.layout import Layout
from elasmo.train import checkpoint, deepspeed_adapter, retention
from elasmo.train.engine import TrainEngine
from tests.gloo import run_ranks
from tests.parallel import layout_run, oracle
from tests.parallel.test_every_layout import TOLERANCE, name

SAVED = 2
"""Steps before the checkpoint; one more follows it."""


def gather(value: Any) -> list[Any]:
    out = [None] * dist.get_world_size()
    dist.all_gather_object(out, value)
    return out


def save(rank: int, world: int, kind: str, layout: Layout, root: str) -> None:
    deepspeed_adapter.init_distributed(60)
    engine = layout_run.start(kind, layout)
    for step in range(SAVED):
        layout_run.run_step(engine, kind, step)
    write(engine, root, rank)


def write(engine: TrainEngine, root: str, rank: int) -> None:
    parallel = (engine.mesh, engine.shards)
    checkpoint.save(engine.deepspeed, Path(root), SAVED, {"optimizer_step": SAVED}, rank, gather, parallel)


def resume(rank: int, world: int, kind: str, layout: Layout, root: str) -> dict[str, float]:
    deepspeed_adapter.init_distributed(60)
    engine = layout_run.start(kind, layout)
    checkpoint.load(engine.deepspeed, Path(root) / retention.folder_name(SAVED), engine.shards, engine.shapes)
    dense, worst = oracle.dense_run(kind), {}  # type: tuple[oracle.DenseRun, dict[str, float]]
    layout_run.compare_owned(engine, dense, SAVED - 1, worst)
    loss = layout_run.run_step(engine, kind, SAVED)
    layout_run.note(worst, "loss", abs(loss - dense.losses[SAVED]) / dense.losses[SAVED])
    layout_run.compare_owned(engine, dense, SAVED, worst)
    return worst


QUICK = [("multimodal", Layout(dp=2, tp=2, tp_sequence=True), Layout(pp=2, zero_stage=0))]
MORE = [
    ("moe", Layout(dp=2, sp=2, ep=4, zero_stage=2), Layout(tp=2, dp=2, ep=2, zero_stage=3)),
    ("moe", Layout(tp=4, zero_stage=3), Layout(dp=3, zero_stage=1)),
    ("dense", Layout(tp=3, zero_stage=0), Layout(tp=4, zero_stage=2)),
    ("dense", Layout(pp=4), Layout(sp=2, dp=2, zero_stage=3)),
    ("multimodal", Layout(dp=4, zero_stage=3), Layout(pp=2, tp=2, schedule="zero-bubble", chunks=2)),
    ("multimodal", Layout(pp=2, dp=2, schedule="interleaved", chunks=2), Layout(dp=1, zero_stage=1)),
    ("dense+lora", Layout(tp=2, dp=2), Layout(dp=2, zero_stage=3)),
    ("switch", Layout(pp=2, dp=2, ep=2), Layout(sp=2, ep=2, zero_stage=0)),
]


@pytest.mark.parametrize(
    ("kind", "before", "after"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.full) for case in MORE)], ids=name
)
def test_a_checkpoint_of_one_layout_goes_on_under_another(
    tmp_path: Path, kind: str, before: Layout, after: Layout
) -> None:
    run_ranks(before.world, save, kind, before, str(tmp_path))
    reader = FragmentReader(tmp_path / retention.folder_name(SAVED))
    for tensor, wanted in oracle.dense_run(kind).weights[SAVED - 1].items():
        torch.testing.assert_close(reader.tensor(tensor), wanted, rtol=1e-4, atol=1e-5)
    for worst in run_ranks(after.world, resume, kind, after, str(tmp_path)):
        wrong = {part: value for part, value in worst.items() if not value <= TOLERANCE}
        assert not wrong, f"{before} -> {after}: {wrong}"


def phase(rank: int, world: int, kind: str, layout: Layout, root: str, first: int, last: int) -> list[float]:
    """Steps [first, last) from the checkpoint of `first`, if that is not the start; leaves one of `last`."""
    deepspeed_adapter.init_distributed(60)
    engine = layout_run.start(kind, layout)
    if first:
        checkpoint.load(engine.deepspeed, Path(root) / retention.folder_name(first), engine.shards, engine.shapes)
    losses = [layout_run.run_step(engine, kind, step) for step in range(first, last)]
    parallel = (engine.mesh, engine.shards)
    checkpoint.save(engine.deepspeed, Path(root), last, {"optimizer_step": last}, rank, gather, parallel)
    return losses


def chain(root: Path, kind: str, layouts: list[Layout], edges: list[int]) -> list[float]:
    """Losses of a run that changes its layout at each of the edges."""
    losses = []
    for layout, first, last in zip(layouts, [0, *edges], edges, strict=False):
        losses += run_ranks(layout.world, phase, kind, layout, str(root), first, last)[0]
    return losses


def assert_same_losses(ours: list[float], wanted: list[float], tolerance: float) -> None:
    for step, (mine, other) in enumerate(zip(ours, wanted, strict=True), 1):
        assert mine == pytest.approx(other, rel=tolerance), f"step {step}"


@pytest.mark.full
def test_a_data_parallel_run_goes_on_under_a_pipeline_and_then_under_tensor_parallelism(tmp_path: Path) -> None:
    """DeepSpeed#2898: a checkpoint of another data-parallel size was refused. Dense run: the oracle of all 22 steps."""
    layouts = [Layout(dp=4), Layout(dp=2, pp=2), Layout(tp=2)]
    losses = chain(tmp_path, "dense", layouts, [2, 12, 22])
    assert_same_losses(losses, oracle.dense_run("dense", steps=22).losses, 1e-5)


@pytest.mark.full
def test_zero_3_goes_on_over_four_times_the_ranks_with_its_moments(tmp_path: Path) -> None:
    """DeepSpeed#3810: under ZeRO 3 only the weights could be taken to another size, and the optimizer began anew."""
    losses = chain(tmp_path, "moe", [Layout(zero_stage=3), Layout(dp=4, zero_stage=3)], [3, 13])
    assert_same_losses(losses, oracle.dense_run("moe", steps=13).losses, 1e-5)


@pytest.mark.full
def test_losing_and_regaining_a_rank_changes_no_loss(tmp_path: Path) -> None:
    """DeepSpeed#4459 and DeepSpeed#8563: from 4 ranks to 3 and back to 4."""
    elastic = chain(tmp_path / "elastic", "multimodal", [Layout(dp=4), Layout(dp=3), Layout(dp=4)], [2, 12, 22])
    fixed = chain(tmp_path / "fixed", "multimodal", [Layout(dp=4)], [22])
    assert_same_losses(elastic, fixed, 1e-4)
    # After each change, a reference of that size from the same checkpoint.
    for layout, first, last in ((Layout(dp=3), 2, 12), (Layout(dp=4), 12, 22)):
        again = run_ranks(layout.world, phase, "multimodal", layout, str(tmp_path / "elastic"), first, last)[0]
        assert_same_losses(elastic[first:last], again, 1e-5)


def test_a_missing_part_of_a_tensor_is_named(tmp_path: Path) -> None:
    """DeepSpeed#7601: a dropped shard."""
    run_ranks(2, save, "dense", Layout(tp=2), str(tmp_path))
    folder = tmp_path / retention.folder_name(SAVED)
    next(folder.glob("rank-00001-*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match=r"rank-00001-\w+\.safetensors is missing; it holds tensor '"):
        FragmentReader(folder).verify()
