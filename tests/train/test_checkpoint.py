"""Checkpoints of any ZeRO stage and world size resume in any other, and equal an uninterrupted dense run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from elasmo.config import TrainConfig
from elasmo.model.fragments import CheckpointError, FragmentReader, Manifest
from elasmo.parallel.layout import Layout
from elasmo.parallel.mesh import make_mesh
from elasmo.parallel.shards import whole
from elasmo.train import checkpoint, deepspeed_adapter, retention
from elasmo.train.checkpoint_saver import CheckpointSaver
from tests.gloo import run_ranks

SLOTS = 4
STEPS = 3


class Net(nn.Module):
    """Shapes that divide by neither 2 nor 3, so that every partition border falls inside a tensor."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.first = nn.Linear(7, 13)
        self.norm = nn.LayerNorm(13)
        self.second = nn.Linear(13, 5)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.norm(self.first(x))))


def batch(step: int, slot: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + slot)
    return torch.randn(3, 7, generator=generator), torch.randn(3, 5, generator=generator)


def settings(stage: int, dtype: str = "float32") -> TrainConfig:
    return TrainConfig(zero_stage=stage, lr=0.02, weight_decay=0.1, grad_clip=0.5, eps=1e-6, dtype=dtype)


def dense(steps: int) -> dict[str, Tensor]:
    """The oracle: plain torch, one process."""
    net, train = Net(), settings(0)
    groups = [
        {"params": [p for p in net.parameters() if p.ndim >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in net.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps)
    for step in range(steps):
        optimizer.zero_grad()
        for slot in range(SLOTS):
            x, y = batch(step, slot)
            ((net(x) - y) ** 2).sum().div(SLOTS * 15).backward()
        nn.utils.clip_grad_norm_(net.parameters(), train.grad_clip)
        optimizer.step()
    return {name: p.detach() for name, p in net.named_parameters()}


def gather(value: Any) -> list[Any]:
    out = [None] * dist.get_world_size()
    dist.all_gather_object(out, value)
    return out


def steps(engine: Any, rank: int, world: int, first: int, last: int) -> None:
    for step in range(first, last):
        for slot in range(rank, SLOTS + (-SLOTS) % world, world):
            x, y = batch(step, slot % SLOTS)
            weight = world / (SLOTS * 15) if slot < SLOTS else 0.0
            dtype = next(engine.module.parameters()).dtype
            engine.backward(((engine(x.to(dtype)).float() - y) ** 2).sum() * weight, scale_wrt_gas=False)
            engine.step()


def start(stage: int, world: int, dtype: str) -> tuple[Any, Any]:
    deepspeed_adapter.init_distributed(60)
    net, mesh = Net(), make_mesh(Layout(dp=world, zero_stage=stage))
    parallel = (mesh, {name: whole(parameter) for name, parameter in net.named_parameters()})
    return deepspeed_adapter.build_engine(net, settings(stage, dtype), -(-SLOTS // world), parallel), parallel


def train_and_save(rank: int, world: int, stage: int, root: str, dtype: str = "float32") -> None:
    engine, parallel = start(stage, world, dtype)
    steps(engine, rank, world, 0, STEPS)
    checkpoint.save(engine, Path(root), STEPS, {"optimizer_step": STEPS}, rank, gather, parallel)


def resume_and_save(rank: int, world: int, stage: int, root: str, dtype: str = "float32") -> None:
    engine, parallel = start(stage, world, dtype)
    shapes = {name: tuple(parameter.shape) for name, parameter in Net().named_parameters()}
    checkpoint.load(engine, Path(root) / retention.folder_name(STEPS), parallel[1], shapes)
    steps(engine, rank, world, STEPS, 2 * STEPS)
    checkpoint.save(engine, Path(root), 2 * STEPS, {"optimizer_step": 2 * STEPS}, rank, gather, parallel)


def weights(root: Path, step: int) -> dict[str, Tensor]:
    reader = FragmentReader(root / retention.folder_name(step))
    return {name: reader.tensor(name) for name in reader.manifest.shapes}


def assert_equal_to_dense(root: Path, step: int, tolerance: float = 2e-6) -> None:
    ours = weights(root, step)
    for name, expected in dense(step).items():
        torch.testing.assert_close(
            ours[name], expected, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def train_on_and_save(rank: int, world: int, stage: int, root: str, dtype: str) -> None:
    engine, parallel = start(stage, world, dtype)
    steps(engine, rank, world, 0, 2 * STEPS)
    checkpoint.save(engine, Path(root), 2 * STEPS, {"optimizer_step": 2 * STEPS}, rank, gather, parallel)


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.full), 3])
def test_bfloat16_resumes_from_float32_masters_without_a_difference(tmp_path: Path, stage: int) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    run_ranks(2, train_on_and_save, stage, str(whole), "bfloat16")
    run_ranks(2, train_and_save, stage, str(resumed), "bfloat16")
    run_ranks(2, resume_and_save, stage, str(resumed), "bfloat16")
    ours, theirs = weights(resumed, 2 * STEPS), weights(whole, 2 * STEPS)
    for name, expected in theirs.items():
        assert torch.equal(ours[name], expected), name
        # Masters, not rounded weights: some value needs more than bfloat16 holds.
    assert any(not torch.equal(value, value.bfloat16().float()) for value in ours.values())


QUICK = [(1, 2, 1, 1), (2, 3, 0, 2), (0, 2, 2, 3), (1, 1, 1, 2)]
EVERY = [(a, w, b, v) for a in range(4) for w in (1, 2, 3) for b in range(4) for v in (1, 2, 3)]


def case(tmp_path: Path, stage: int, world: int, next_stage: int, next_world: int) -> None:
    run_ranks(world, train_and_save, stage, str(tmp_path))
    assert_equal_to_dense(tmp_path, STEPS)
    run_ranks(next_world, resume_and_save, next_stage, str(tmp_path))
    assert_equal_to_dense(tmp_path, 2 * STEPS)


@pytest.mark.parametrize(("stage", "world", "next_stage", "next_world"), [*QUICK, (3, 2, 1, 1), (1, 2, 3, 3)])
def test_resume_in_another_layout_equals_the_dense_run(
    tmp_path: Path, stage: int, world: int, next_stage: int, next_world: int
) -> None:
    case(tmp_path, stage, world, next_stage, next_world)


@pytest.mark.full
@pytest.mark.parametrize(("stage", "world", "next_stage", "next_world"), EVERY[::4])
def test_resume_over_many_layouts_equals_the_dense_run(
    tmp_path: Path, stage: int, world: int, next_stage: int, next_world: int
) -> None:
    case(tmp_path, stage, world, next_stage, next_world)


def save_beside_steps(rank: int, world: int, root: str) -> None:
    engine, parallel = start(1, world, "float32")
    group = dist.new_group()

    def gather_apart(value: Any) -> list[Any]:
        out = [None] * world
        dist.all_gather_object(out, value, group=group)
        return out

    saver = CheckpointSaver(root, rank, gather_apart)
    for step in range(1, 2 * STEPS + 1):
        steps(engine, rank, world, step - 1, step)
        saver.save(checkpoint.take(engine, parallel), step, {"optimizer_step": step})
    saver.finish()


def test_checkpoints_written_beside_the_next_steps_are_those_of_their_step(tmp_path: Path) -> None:
    """One after every step, so that each write falls into collectives of training."""
    run_ranks(2, save_beside_steps, str(tmp_path))
    for step in range(1, 2 * STEPS + 1):
        assert_equal_to_dense(tmp_path, step)


META = {"optimizer_step": 3, "cursor": {"step": 3, "seed": 0}, "processor_hash": "p"}


@pytest.mark.parametrize("missing", ["cursor", "processor_hash"])
def test_a_checkpoint_without_its_data_state_is_not_resumed(missing: str) -> None:
    """NVIDIA-NeMo/Megatron-Bridge#3993: weights came back, and the data began at an arbitrary position."""
    meta = {name: value for name, value in META.items() if name != missing}
    manifest = Manifest(3, {}, (), (), (), meta)
    with pytest.raises(CheckpointError, match=f"step-000003 has no {missing}: training cannot go on where it stopped"):
        checkpoint.check_resumable(manifest, {"step": 3, "seed": 0}, "p", "step-000003")


def test_a_cursor_that_lacks_a_setting_and_another_tokenizer_are_refused() -> None:
    manifest = Manifest(3, {}, (), (), (), META)
    checkpoint.check_resumable(manifest, {"step": 3, "seed": 0}, "p", "x")
    with pytest.raises(CheckpointError, match="x does not say which sources its data was read under"):
        checkpoint.check_resumable(manifest, {"step": 3, "sources": []}, "p", "x")
    with pytest.raises(CheckpointError, match="x was trained with another tokenizer"):
        checkpoint.check_resumable(manifest, {"step": 3}, "q", "x")


def test_a_checkpoint_without_the_optimizers_step_is_refused() -> None:
    with pytest.raises(CheckpointError, match="x has no optimizer_step: training cannot go on where it stopped; use"):
        checkpoint.state_of(Manifest(3, {}, (), (), ()), "optimizer_step", "x")


def load_and_save(rank: int, world: int, stage: int, root: str, out: str) -> None:
    engine, parallel = start(stage, world, "bfloat16")
    shapes = {name: tuple(parameter.shape) for name, parameter in Net().named_parameters()}
    checkpoint.load(engine, Path(root) / retention.folder_name(STEPS), parallel[1], shapes)
    checkpoint.save(engine, Path(out), STEPS, {"optimizer_step": STEPS}, rank, gather, parallel)


@pytest.mark.full
@pytest.mark.parametrize(("stage", "world"), [(3, 3), (2, 1), (1, 3)])
def test_masters_and_moments_of_bfloat16_weights_pass_through_any_stage_bit_for_bit(
    tmp_path: Path, stage: int, world: int
) -> None:
    run_ranks(2, train_and_save, 1, str(tmp_path), "bfloat16")
    run_ranks(world, load_and_save, stage, str(tmp_path), str(tmp_path / "again"))
    ours, theirs = (FragmentReader(place / retention.folder_name(STEPS)) for place in (tmp_path / "again", tmp_path))
    for name in theirs.manifest.shapes:
        for state in ("weight", "exp_avg", "exp_avg_sq"):
            assert torch.equal(ours.tensor(name, state), theirs.tensor(name, state)), (name, state)
