"""DeepSpeed's insides do what `deepspeed_adapter` believes of them, against torch on whole tensors.

Each failure says in a sentence what an upgrade has moved, and the version that the adapter was written for.
"""

from __future__ import annotations

from typing import Any

import deepspeed
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from elasmo.parallel.layout import Layout
from elasmo.parallel.mesh import make_mesh
from elasmo.parallel.shards import whole
from elasmo.train import deepspeed_adapter
from tests.gloo import RankFailed, run_ranks
from tests.train.tiny_engine import TOGETHER, TRAIN, Cut, adamw, build, gradients, moved, step_once


def clipped(engine: Any) -> dict[str, Tensor]:
    """Gradients after clipping: first moments after one step are 1 - beta of them."""
    return {owned.name: owned.exp_avg / (1 - TRAIN.betas[0]) for owned in deepspeed_adapter.owned_slices(engine)}


def norms(rank: int, world: int, stages: tuple[int, ...]) -> list[tuple[int, bool | None, float | None, float]]:
    """For each ZeRO stage and way to mark the copy, the norm reported and the one by which gradients were clipped."""
    found = []
    for stage in stages:
        for mark_copy in (None, True, False):
            engine = build(rank, Layout(tp=world, zero_stage=stage), mark_copy)
            step_once(engine, rank)
            factor = float(clipped(engine)["part"].norm() / gradients(rank)[0].norm())
            found.append((stage, mark_copy, deepspeed_adapter.grad_norm(engine), TRAIN.grad_clip / factor))
            engine.destroy()
    return found


@TOGETHER
def test_the_norm_sums_marked_parameters_over_the_model_parallel_group(stages: tuple[int, ...]) -> None:
    parts = [float(gradients(rank)[0].norm()) ** 2 for rank in range(2)]
    copy = float(gradients(0)[1].norm()) ** 2
    for found in run_ranks(2, norms, stages):
        assert len(found) == 3 * len(stages)
        for stage, mark_copy, reported, used in found:
            copies, marked = {None: (1, "one rank"), True: (2, "both ranks"), False: (0, "no rank")}[mark_copy]
            norm = (sum(parts) + copies * copy) ** 0.5  # with another number of copies it is wrong by 5 % and more
            belief = f"ZeRO {stage}: a copy that is marked on {marked} counts {copies} times in the gradient norm"
            assert used == pytest.approx(norm, rel=1e-5), moved("Parameter.model_parallel", belief)
            if stage == 0:
                assert reported is None, moved("get_global_grad_norm", "None under ZeRO 0; now it can be logged")
            else:
                assert reported == pytest.approx(norm, rel=1e-5), moved("get_global_grad_norm", belief)


def whole_tensors(rank: int, world: int, stages: tuple[int, ...]) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
    """For each stage after one step: tensors put together from what ranks own, and the same loaded and read back.

    Keys are a tensor's name and which of its values; a value nobody owns is NaN, one owned twice infinite.
    """
    found = []
    for stage in stages:
        engine = build(rank, Layout(dp=world, zero_stage=stage))
        step_once(engine, rank)
        before = put_together(engine, stage)
        for owned in deepspeed_adapter.owned_slices(engine):
            owned.weight.copy_(torch.arange(owned.start, owned.stop))
        deepspeed_adapter.finish_load(engine, 7)
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=stage == 3):
            after: dict[str, Any] = {name: p.detach().numpy().copy() for name, p in engine.module.named_parameters()}
        after["steps"] = {float(state["step"]) for state in deepspeed_adapter._torch_optimizer(engine).state.values()}
        found.append((stage, before, after))
        engine.destroy()
    return found


def put_together(engine: Any, stage: int) -> dict[str, Any]:
    shapes = deepspeed_adapter.local_shapes(engine)
    kinds = ("weight", *deepspeed_adapter.MOMENTS)
    pieces = [
        (f"{owned.name} {kind}", owned.start, getattr(owned, kind).numpy().copy())
        for owned in deepspeed_adapter.owned_slices(engine)
        for kind in kinds
    ]
    pieces += [(f"{n} weight", start, v.numpy().copy()) for n, start, v in deepspeed_adapter.frozen_slices(engine)]
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, pieces)
    made: dict[str, Any] = {}
    for number, pieces in enumerate(ranks):
        for key, start, values in pieces:
            name = key.split()[0]
            replicated = stage == 0 or (name == "frozen" and stage < 3)
            if replicated and number > 0:
                continue
            flat = made.setdefault(key, np.full(np.prod(shapes[name]), np.nan))
            piece = flat[start : start + len(values)]
            piece[:] = np.where(np.isnan(piece), values, np.inf)
    return {key: flat.reshape(shapes[key.split()[0]]) for key, flat in made.items()}


def expected_after_a_step() -> dict[str, Any]:
    """One step of torch's AdamW from the mean gradient of both ranks, whose weights are those of rank 0."""
    net = Cut(0)
    optimizer = adamw(net)
    net.part.grad, net.copy.grad = (torch.stack(both).mean(0) for both in zip(*map(gradients, range(2)), strict=True))
    nn.utils.clip_grad_norm_(net.parameters(), TRAIN.grad_clip)
    optimizer.step()
    made: dict[str, Any] = {f"{name} weight": p.detach().numpy() for name, p in net.named_parameters()}
    for name, parameter in (("part", net.part), ("copy", net.copy)):
        made |= {f"{name} {kind}": optimizer.state[parameter][kind].numpy() for kind in deepspeed_adapter.MOMENTS}
    return made


@TOGETHER
def test_ranks_own_every_value_once_and_loaded_masters_become_weights(stages: tuple[int, ...]) -> None:
    expected = expected_after_a_step()
    for found in run_ranks(2, whole_tensors, stages):
        assert len(found) == len(stages)
        for stage, before, after in found:
            owned = moved(f"partitions of ZeRO {stage}", "where each rank's masters, moments and frozen weights lie")
            assert before.keys() == expected.keys(), owned
            for key, values in expected.items():
                np.testing.assert_allclose(before[key], values, rtol=1e-5, atol=1e-7, err_msg=f"{key}: {owned}")
            loaded = moved(f"the way of ZeRO {stage} from masters to weights", "finish_load's call copies them")
            for name, shape in (("part", (5, 3)), ("copy", (7,))):
                np.testing.assert_array_equal(after[name].ravel(), np.arange(np.prod(shape)), err_msg=loaded)
            assert after["steps"] == {7.0}, moved("the optimizer's state", "its step counters are set by finish_load")


def accumulated(rank: int, world: int, stage: int, flag: bool) -> tuple[dict[str, Any], float | None]:
    """Weights and norm after two steps from gradients that are in `.grad`, where no hook of DeepSpeed's saw them come.

    The first step's came from three backward passes outside of the engine, the second's were written there, as
    zero-bubble schedules do.
    """
    engine = build(rank, Layout(pp=world, zero_stage=stage))
    engine.pipeline_parallelism = flag
    net, mesh = engine.module, make_mesh(Layout(pp=world))
    shards = {name: whole(parameter) for name, parameter in net.named_parameters()}
    for _ in range(3):
        (Cut.forward(net, *gradients(rank)) / 3).backward()
    deepspeed_adapter.step_accumulated(engine, mesh, shards)
    net.part.grad, net.copy.grad = gradients(rank)
    deepspeed_adapter.step_accumulated(engine, mesh, shards)
    weights = {name: p.detach().numpy().copy() for name, p in net.named_parameters()}
    return weights, deepspeed_adapter.grad_norm(engine)


@pytest.mark.parametrize("stage", [0, 1])
def test_without_managed_accumulation_a_step_takes_what_has_gathered(stage: int) -> None:
    parts = [float(gradients(rank)[0].norm()) ** 2 for rank in range(2)]
    norm = (sum(parts) + float(gradients(0)[1].norm()) ** 2) ** 0.5
    belief = f"ZeRO {stage}: `step` reduces and clips what `.grad` holds, updates once, and clears it"
    for rank, (weights, reported) in enumerate(run_ranks(2, accumulated, stage, True)):
        net = Cut(rank)
        optimizer = adamw(net)
        for _ in range(2):
            net.part.grad, net.copy.grad = (gradient * TRAIN.grad_clip / norm for gradient in gradients(rank))
            optimizer.step()
        for name, parameter in net.named_parameters():
            np.testing.assert_allclose(
                weights[name],
                parameter.detach(),
                rtol=1e-5,
                atol=1e-7,
                err_msg=f"{name}: {moved('managed_gradient_accumulation', belief)}",
            )
        if stage:
            assert reported == pytest.approx(norm, rel=1e-5), moved("get_global_grad_norm", belief)


def test_zero_1_makes_buckets_for_written_gradients_only_under_the_pipeline_flag() -> None:
    try:
        run_ranks(2, accumulated, 1, False)
    except RankFailed as error:
        assert "IndexError" in str(error) and "bucket.buffer" in str(error), error
    else:
        pytest.fail(moved("pipeline_parallelism", "without it ZeRO 1 has no buckets; setting it may now be needless"))


def on_a_gpu(rank: int, world: int, zero_stages: tuple[int, ...]) -> list[bool]:
    """Whether communication overlaps in engines that a machine with CUDA would get."""
    available, found = torch.cuda.is_available, []
    for stage in zero_stages:
        torch.cuda.is_available = lambda: True
        try:
            engine = build(rank, Layout(pp=world, zero_stage=stage))
        finally:
            torch.cuda.is_available = available
        found.append(engine.zero_overlap_comm())
        engine.destroy()
    return found


def refused(rank: int, world: int) -> str:
    """DeepSpeed's answer to overlapping communication without managed accumulation."""
    initialize = deepspeed.initialize

    def overlapping(config: dict[str, Any], **rest: Any) -> Any:
        config["zero_optimization"]["overlap_comm"] = True
        return initialize(config=config, **rest)

    deepspeed.initialize = overlapping
    try:
        build(rank, Layout(pp=world))
    except AssertionError as error:
        return str(error)
    return ""


def test_a_pipeline_on_gpus_asks_for_no_overlap_which_deepspeed_refuses() -> None:
    assert run_ranks(2, on_a_gpu, (0, 1)) == [[False, False]] * 2
    for message in run_ranks(2, refused):
        assert "overlap_comm" in message, moved("overlap_comm", "it was refused without managed accumulation")
