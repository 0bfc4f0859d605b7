"""A step that is dropped at the gate leaves weights, moments and counters bit for bit, under every ZeRO stage."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from elasmo.parallel.layout import Layout
from elasmo.parallel.mesh import make_mesh
from elasmo.parallel.shards import whole
from elasmo.train import deepspeed_adapter
from elasmo.train.step_gate import install_gate
from tests.gloo import run_ranks
from tests.train.test_checkpoint import SLOTS, batch, start
from tests.train.tiny_engine import build, gradients, moved, step_once

FULL = pytest.mark.full
CASES = [
    pytest.param((0, 1, 2), "float32", True, id="nan_zero_0_to_2"),
    pytest.param((3,), "bfloat16", True, id="nan_zero_3_bfloat16", marks=FULL),
    pytest.param((0, 1, 2), "float32", False, id="finite_zero_0_to_2", marks=FULL),
    pytest.param((1, 2), "bfloat16", True, id="nan_zero_1_and_2_bfloat16", marks=FULL),
    pytest.param((1, 2), "bfloat16", False, id="finite_zero_1_and_2_bfloat16", marks=FULL),
    pytest.param((3,), "float32", True, id="nan_zero_3", marks=FULL),
    pytest.param((3,), "bfloat16", False, id="finite_zero_3_bfloat16", marks=FULL),
]
"""ZeRO 3 replaces `F.linear` in its process, so it runs apart."""
State = dict[str, Tensor]


def state_of(engine: Any) -> State:
    """Copies of masters, moments, counters, and of the parameters as the model uses them."""
    found = {
        f"{owned.name} {kind}": getattr(owned, kind).clone()
        for owned in deepspeed_adapter.owned_slices(engine)
        for kind in ("weight", *deepspeed_adapter.MOMENTS)
    }
    for number, state in enumerate(deepspeed_adapter._torch_optimizer(engine).state.values()):
        found[f"step {number}"] = state["step"].clone()
    for name, parameter in engine.module.named_parameters():
        if deepspeed_adapter.zero_stage(engine) < 3:
            found[name] = parameter.detach().clone()
            continue
        part = parameter.ds_tensor.data
        start = dist.get_rank() * part.numel()  # what lies beyond the tensor's end was never written
        found[name] = part[: max(0, parameter.ds_numel - start)].clone()
    return found


def equal(ours: State, theirs: State) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def train(engine: Any, rank: int, world: int, step: int, poison: bool = False) -> None:
    """A step of two micro-batches on each of three ranks, the second perhaps with inputs that are not finite."""
    for slot in range(rank, 2 * world, world):
        x, y = batch(step, slot % SLOTS)
        if poison and slot >= world:
            x = x * math.nan
        out = engine(x.to(next(engine.module.parameters()).dtype)).float()
        engine.backward(((out - y) ** 2).sum() / 15, scale_wrt_gas=False)
        engine.step()


def dropped(rank: int, world: int, stages: tuple[int, ...], dtype: str, poison: bool) -> list[dict[str, Any]]:
    """For each stage: whether a dropped step changed anything, and whether the steps after it are as without it."""
    results = []
    for stage in stages:
        seen: list[float] = []
        drop = [False]

        def gate(norm: float, seen: list[float] = seen, drop: list[bool] = drop) -> bool:
            seen.append(norm)
            return not drop[0]

        engine, _ = start(stage, world, dtype)
        install_gate(engine, gate)
        for step in (0, 1):
            train(engine, rank, world, step)
        before = state_of(engine)
        drop[0] = True
        train(engine, rank, world, 2, poison and rank == 2)
        after = state_of(engine)
        drop[0] = False
        for step in (3, 4):
            train(engine, rank, world, step)
        went_on = state_of(engine)
        engine.destroy()
        plain, _ = start(stage, world, dtype)  # without a gate
        for step in (0, 1, 3, 4):
            train(plain, rank, world, step)
        results.append(
            {
                "stage": stage,
                "unchanged": equal(before, after),
                "as_without": equal(went_on, state_of(plain)),
                "moved": not equal(after, went_on),
                "norms": seen,
            }
        )
        plain.destroy()
    return results


@pytest.mark.parametrize(("stages", "dtype", "poison"), CASES)
def test_a_dropped_step_never_happened(stages: tuple[int, ...], dtype: str, poison: bool) -> None:
    """WeatherGenerator#2724: NaN on rank 2 only; and a step that is dropped though its numbers are fine."""
    ranks = run_ranks(3, dropped, stages, dtype, poison)
    for number, stage in enumerate(stages):
        norms = [found[number]["norms"] for found in ranks]
        assert all(str(own) == str(norms[0]) for own in norms)  # as text: a NaN is itself there
        assert len(norms[0]) == 5 and (math.isfinite(norms[0][2]) and norms[0][2] >= 0) != poison
        for found in ranks:
            said = moved(f"an overflow's way under ZeRO {stage}", "it drops the step and its gradients, nothing else")
            assert found[number]["unchanged"], said
            assert found[number]["as_without"] and found[number]["moved"], said


def in_a_pipeline(rank: int, world: int, stages: tuple[int, ...]) -> list[tuple[bool, bool]]:
    found = []
    for stage in stages:
        take = [False]
        layout = Layout(pp=world, zero_stage=stage)
        engine, mesh = build(rank, layout), make_mesh(Layout(pp=world))
        install_gate(engine, lambda norm, take=take: take[0])
        engine.pipeline_parallelism = True
        net = engine.module
        shards = {name: whole(parameter) for name, parameter in net.named_parameters()}
        before = state_of(engine)
        net.part.grad, net.copy.grad = gradients(rank)
        deepspeed_adapter.step_accumulated(engine, mesh, shards)
        unchanged = equal(before, state_of(engine)) and net.part.grad is None
        take[0] = True
        net.part.grad, net.copy.grad = gradients(rank)
        deepspeed_adapter.step_accumulated(engine, mesh, shards)
        found.append((unchanged, not equal(before, state_of(engine))))
        engine.destroy()
    return found


def gated_norms(rank: int, world: int) -> list[float]:
    seen: list[float] = []
    for stage in (0, 1, 2):
        engine = build(rank, Layout(dp=world, zero_stage=stage), mark_copy=True)
        install_gate(engine, lambda norm: bool(seen.append(norm)) or True)
        step_once(engine, rank)
        engine.destroy()
    return seen


def both(rank: int, world: int) -> tuple[list[tuple[bool, bool]], list[float]]:
    return in_a_pipeline(rank, world, (0, 1)), gated_norms(rank, world)


def test_the_gate_knows_the_norm_before_clipping_and_drops_what_a_pipeline_accumulated() -> None:
    part, copy = (torch.stack([gradients(rank)[which] for rank in range(2)]).mean(0) for which in (0, 1))
    expected = math.sqrt(float(part.norm()) ** 2 + float(copy.norm()) ** 2)
    for steps, seen in run_ranks(2, both):
        assert steps == [(True, True)] * 2
        assert seen == pytest.approx([expected] * 3, rel=1e-5)
