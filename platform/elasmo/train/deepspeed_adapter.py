"""What knows DeepSpeed's insides, with `step_gate`: building an engine, reading and writing what each rank owns of it.

Everything private that is used here is pinned to DeepSpeed 0.19 and covered by a contract test: a release that moves it
must fail that test, not train silently wrong.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from elasmo.config import TrainConfig
from elasmo.parallel.memory import bucket_elements
from elasmo.parallel.mesh import Group, Mesh
from elasmo.parallel.shards import Dim, Shard
from elasmo.train.freeze import FreezeError
from elasmo.train.loss import PREFIX

os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")

import deepspeed
import deepspeed.comm.comm as deepspeed_comm

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class OwnedSlice:
    """Elements [start, stop) of one full tensor that this rank updates, as flat views into the engine's memory."""

    name: str
    start: int
    stop: int
    weight: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


class CommunicationClock:
    """Sums the time spent in DeepSpeed's collectives; stands where DeepSpeed keeps its communication logger.

    DeepSpeed waits for the device after every collective while a logger is enabled, so this is for CPU runs, where
    collectives block anyway. Its own logger divides by the latency and fails on a collective below the timer's tick.
    """

    enabled = True
    prof_all = True
    prof_ops: tuple[str, ...] = ()
    verbose = False
    debug = False

    def __init__(self) -> None:
        self.seconds = 0.0

    def append(self, raw_name: str, record_name: str, latency_ms: float, bytes_sent: int) -> None:
        self.seconds += latency_ms / 1000.0
        # DeepSpeed accumulates a timer for every name unless it is reset, and reports the running sum.
        deepspeed_comm.timers(record_name).reset()

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def init_distributed(timeout_s: float) -> None:
    """Joins DeepSpeed to the process group that Ray Train made, without its just-in-time compiled shared-memory op."""
    from datetime import timedelta

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    deepspeed.init_distributed(dist_backend=backend, timeout=timedelta(seconds=timeout_s), verbose=False)


class ModelParallelUnit:
    """What DeepSpeed asks of a Megatron-like library: which ranks share parameters, and which together hold the model.

    DeepSpeed counts a parameter in the gradient norm if it is marked `model_parallel` or if the rank is model-parallel
    rank 0. Which copy counts depends on the parameter (a norm is whole on every tensor-parallel rank, a projection is
    not), so every rank claims to be rank 1, and only what `_mark` marks is counted.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._zero, self._unlike = (g.handle or _alone() for g in (mesh.zero, mesh.unlike))

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self._zero

    def get_data_parallel_world_size(self) -> int:
        return self._mesh.zero.size

    def get_data_parallel_rank(self) -> int:
        return self._mesh.zero.rank

    def get_data_parallel_group_ranks(self) -> list[int]:
        return list(self._mesh.zero.ranks)

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self._unlike

    def get_model_parallel_world_size(self) -> int:
        return self._mesh.unlike.size

    def get_model_parallel_rank(self) -> int:
        return 1


def build_engine(
    model: nn.Module, train: TrainConfig, micro_steps: int, parallel: tuple[Mesh, Mapping[str, Shard]]
) -> Any:
    """A DeepSpeed engine around `model` with torch's AdamW.

    The loss handed to `engine.backward` is already divided by the global batch's target tokens and multiplied by the
    world size, since DeepSpeed averages gradients over ranks.

    Args:
        model: with full float32 weights, equal on every rank.
        train: optimisation settings.
        micro_steps: micro-batches between optimizer steps on this rank.
        parallel: the layout's groups and what this rank holds of each parameter.

    Raises:
        FreezeError: on every rank, where the trained parameters of the pipeline's stages do not go together.
    """
    mesh, shards = parallel
    _mark(model, mesh, shards)
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    if mesh.layout.pp > 1:
        _check_stages(bool(decayed), bool(others), mesh.place.pp)
    groups = [{"params": decayed, "weight_decay": train.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)
    settings = {
        "train_micro_batch_size_per_gpu": train.micro_batch,
        "gradient_accumulation_steps": micro_steps,
        "gradient_clipping": train.grad_clip,
        "bf16": {"enabled": train.dtype == "bfloat16"},
        "zero_optimization": {
            "stage": train.zero_stage,
            # With a pipeline gradients are reduced in `step`, when there is no backward pass left to overlap with.
            "overlap_comm": torch.cuda.is_available() and mesh.layout.pp == 1,
            "stage3_param_persistence_threshold": 0,
            "reduce_bucket_size": bucket_elements(sum(p.numel() for p in (*decayed, *others))),
            **_offload(train.offload),
        },
        # torch's AdamW also steps what is offloaded: DeepSpeed's own would have to be compiled on every machine.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        # With a pipeline, torch's schedule runs the backward passes: `step` then reduces what they accumulated.
        "managed_gradient_accumulation": mesh.layout.pp == 1,
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=settings, mpu=ModelParallelUnit(mesh), dist_init_required=False
    )
    # ZeRO then makes its reduction buckets in `step`: zero-bubble schedules write `.grad` past the hooks that would.
    engine.pipeline_parallelism = mesh.layout.pp > 1
    _create_states(engine)
    return engine


def _check_stages(matrices: bool, vectors: bool, stage: int) -> None:
    """DeepSpeed sums the gradient norm over ranks once a parameter group: with unlike ones they would wait."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (stage, matrices, vectors))
    kinds = {of: {"matrices": m, "vectors (norms, biases)": v} for of, m, v in sorted(found)}
    for kind in ("matrices", "vectors (norms, biases)"):
        without = [str(of) for of, trained in kinds.items() if not trained[kind]]
        if without and (kind == "matrices" or len(without) < len(kinds)):
            raise FreezeError(
                f"train.freeze and train.lora leave pipeline stage {', '.join(without)} of {len(kinds)} no {kind} to "
                f"train, and DeepSpeed needs every stage to train the same kinds; train some there, or set "
                "train.layout.pp=1."
            )


def _offload(what: str) -> dict[str, Any]:
    host = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    parts = {"none": (), "optimizer": ("offload_optimizer",), "all": ("offload_optimizer", "offload_param")}[what]
    return dict.fromkeys(parts, host)


def _mark(model: nn.Module, mesh: Mesh, shards: Mapping[str, Shard]) -> None:
    """Says which copies count in the gradient norm, and sums gradients that are partial as soon as they are whole here.

    The hook runs before DeepSpeed's own, which then reduces over the ranks that hold the same parameter.
    """
    for name, parameter in model.named_parameters():
        shard = shards[name.removeprefix(PREFIX)]
        parameter.model_parallel = shard.counted  # type: ignore[attr-defined]
        if parameter.requires_grad and mesh.layout.pp == 1:
            for dim in shard.partial:
                parameter.register_hook(partial(_sum_over, getattr(mesh, dim)))


def step_accumulated(engine: Any, mesh: Mesh, shards: Mapping[str, Shard]) -> None:
    """An optimizer step from gradients that a pipeline schedule has accumulated in `.grad`.

    Gradients that are partial over a group are summed first, together for each group, in one order on all ranks.
    """
    by_groups: dict[tuple[Dim, ...], list[Tensor]] = {}
    for name, parameter in engine.module.named_parameters():
        dims = shards[name.removeprefix(PREFIX)].partial
        if dims and parameter.grad is not None:
            by_groups.setdefault(dims, []).append(parameter.grad)
    for dims, gradients in sorted(by_groups.items()):
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        for dim in dims:
            dist.all_reduce(flat, group=getattr(mesh, dim).handle)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
    engine.step()


def _sum_over(group: Group, gradient: Tensor) -> Tensor:
    total = gradient.contiguous().clone()
    dist.all_reduce(total, group=group.handle)
    return total


def _alone() -> dist.ProcessGroup:
    """A group of this rank alone; every rank makes every one of them, as `new_group` demands."""
    groups: list[dist.ProcessGroup] = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return groups[dist.get_rank()]


def install_clock() -> CommunicationClock:
    """Starts timing collectives; call it after `build_engine`, once a process."""
    clock = CommunicationClock()
    deepspeed_comm.comms_logger = clock
    return clock


def set_lr(engine: Any, lr: float) -> None:
    """Sets the learning rate of the next optimizer step."""
    for group in engine.optimizer.param_groups:
        group["lr"] = lr


def zero_stage(engine: Any) -> int:
    return int(engine.zero_optimization_stage())


def local_shapes(engine: Any) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor as the layout leaves it to this rank, before ZeRO shards it."""
    return {
        name.removeprefix(PREFIX): tuple(getattr(parameter, "ds_shape", parameter.shape))
        for name, parameter in engine.module.named_parameters()
    }


def frozen_slices(engine: Any) -> Iterator[tuple[str, int, Tensor]]:
    """(name, start, flat values) of what this rank holds of untrained parameters: all, or in ZeRO 3 its part."""
    for full_name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            continue
        name = full_name.removeprefix(PREFIX)
        if zero_stage(engine) < 3:
            yield name, 0, parameter.data.view(-1)
            continue
        part = parameter.ds_tensor
        start = torch.distributed.get_rank(parameter.ds_process_group) * part.numel()
        stop = min(start + part.numel(), parameter.ds_numel)
        if start < stop:
            yield name, start, part.data[: stop - start]


def owned_slices(engine: Any) -> Iterator[OwnedSlice]:
    """What this rank updates. Under ZeRO 0 every rank updates, and yields, everything."""
    stage = zero_stage(engine)
    names = {id(parameter): name.removeprefix(PREFIX) for name, parameter in engine.module.named_parameters()}
    if stage == 0:
        yield from _replicated(engine, names)
    elif stage in (1, 2):
        yield from _flat_partitions(engine, names)
    else:
        yield from _parameter_partitions(engine, names)


def finish_load(engine: Any, optimizer_step: int) -> None:
    """Makes loaded masters and moments take effect: weights from masters, step counters, full weights on every rank.

    Forgetting any of these is silent: training goes on from stale weights or with wrong bias correction.
    """
    for state in _torch_optimizer(engine).state.values():
        state["step"].fill_(float(optimizer_step))
    stage = zero_stage(engine)
    if stage in (1, 2):
        engine.optimizer.update_lp_params()
    elif stage == 3:
        for group in range(len(engine.optimizer.fp16_groups)):
            engine.optimizer._reassign_or_swap_out_partitioned_parameters(group)


def grad_norm(engine: Any) -> float | None:
    """Norm of the last step's whole gradient before clipping, None where DeepSpeed does not say."""
    norm = engine.get_global_grad_norm()
    if norm is None:
        return None
    value = float(norm)
    return value if math.isfinite(value) and value >= 0 else None


def _torch_optimizer(engine: Any) -> torch.optim.Optimizer:
    optimizer = engine.optimizer
    inner: torch.optim.Optimizer = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer.optimizer
    return inner


def _create_states(engine: Any) -> None:
    optimizer = _torch_optimizer(engine)
    if zero_stage(engine) == 3:
        # Under ZeRO 3 the flat partitions enter the optimizer's groups one by one during a step.
        partitions = engine.optimizer.fp32_partitioned_groups_flat
    else:
        partitions = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in partitions:
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),  # where a fused step wants it
            "exp_avg": torch.zeros_like(parameter.data),
            "exp_avg_sq": torch.zeros_like(parameter.data),
        }


def _replicated(engine: Any, names: dict[int, str]) -> Iterator[OwnedSlice]:
    state = _torch_optimizer(engine).state
    for parameter in engine.module.parameters():
        if parameter.requires_grad:
            moments = [state[parameter][key].view(-1) for key in MOMENTS]
            yield OwnedSlice(names[id(parameter)], 0, parameter.numel(), parameter.data.view(-1), *moments)


def _flat_partitions(engine: Any, names: dict[int, str]) -> Iterator[OwnedSlice]:
    optimizer = engine.optimizer
    state = optimizer.optimizer.state
    for group, master in enumerate(optimizer.single_partition_of_fp32_groups):
        rank = torch.distributed.get_rank(optimizer.real_dp_process_group[group])
        left = rank * optimizer.partition_size[group]
        right = left + optimizer.partition_size[group]
        members = zip(
            optimizer.round_robin_bit16_groups[group], optimizer.round_robin_bit16_offsets[group], strict=True
        )
        for parameter, offset in members:
            low, high = max(left, offset), min(right, offset + parameter.numel())
            if low < high:
                place = slice(low - left, high - left)
                moments = [state[master][key][place] for key in MOMENTS]
                yield OwnedSlice(names[id(parameter)], low - offset, high - offset, master.data[place], *moments)


def _parameter_partitions(engine: Any, names: dict[int, str]) -> Iterator[OwnedSlice]:
    optimizer = engine.optimizer
    state = optimizer.optimizer.state
    rank = torch.distributed.get_rank(optimizer.dp_process_group)
    for group, parameters in enumerate(optimizer.fp16_groups):
        master = optimizer.fp32_partitioned_groups_flat[group]
        for parameter in parameters:
            _, offset, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
            start = rank * size
            stop = min(start + size, parameter.ds_numel)
            if start < stop:
                place = slice(offset, offset + stop - start)
                moments = [state[master][key][place] for key in MOMENTS]
                yield OwnedSlice(names[id(parameter)], start, stop, master.data[place], *moments)
