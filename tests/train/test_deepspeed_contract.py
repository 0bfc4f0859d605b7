"""The names, settings and questions that `deepspeed_adapter` shares with DeepSpeed's insides are there.

Each failure says in a sentence what an upgrade has moved, and the version that the adapter was written for; what those
insides do is in `test_deepspeed_behaviour`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from elasmo.parallel.layout import Layout
from elasmo.train import deepspeed_adapter
from tests.gloo import run_ranks
from tests.train.tiny_engine import PINNED, TOGETHER, TRAIN, Cut, build, moved, step_once

ZERO_1_AND_2 = {
    "optimizer": "torch's optimizer, whose state holds the moments",
    "single_partition_of_fp32_groups": "float32 masters of each group's own partition",
    "real_dp_process_group": "group over which each parameter group is partitioned",
    "partition_size": "elements of a partition of each group",
    "round_robin_bit16_groups": "parameters of each group in the order of its flat buffer",
    "round_robin_bit16_offsets": "where each of them starts in that buffer",
    "update_lp_params": "call that copies masters into weights",
    "dp_process_group": "group whose gradients are averaged",
    "model_parallel_group": "group over which norms are summed",
    "model_parallel_rank": "0 where unmarked parameters count in the norm",
    "overlap_comm": "whether gradients are reduced during the backward pass",
}
ZERO_3 = {
    "optimizer": "torch's optimizer, whose state holds the moments",
    "fp16_groups": "parameters of each flat partition",
    "fp32_partitioned_groups_flat": "float32 masters of each flat partition",
    "dp_process_group": "group over which parameters are partitioned",
    "grad_position": "(group, offset, elements) of a parameter's partition by its id",
    "get_param_id": "key of grad_position",
    "_reassign_or_swap_out_partitioned_parameters": "call that copies a partition's masters into weights",
    "model_parallel_group": "group over which norms are summed",
    "model_parallel_rank": "0 where unmarked parameters count in the norm",
}
OPTIMIZER = {1: ZERO_1_AND_2, 2: ZERO_1_AND_2, 3: ZERO_3}
ENGINE = {
    "module": "the model, wrapped by ZeRO 3",
    "optimizer": "ZeRO's or torch's optimizer",
    "pipeline_parallelism": "flag after which ZeRO 1 makes its buckets in `step`",
    "backward": "scales and runs the backward pass",
    "step": "reduces, clips and updates",
    "destroy": "removes hooks",
    "get_global_grad_norm": "norm before clipping",
    "zero_optimization_stage": "ZeRO stage",
}
PARAMETER_OF_ZERO_3 = {
    "ds_shape": "whole shape",
    "ds_numel": "whole number of elements",
    "ds_tensor": "this rank's part, padded",
    "ds_process_group": "group over which it is partitioned",
}
SETTINGS: dict[str, Callable[[Any], object]] = {
    "train_micro_batch_size_per_gpu": lambda engine: engine.train_micro_batch_size_per_gpu(),
    "gradient_accumulation_steps": lambda engine: engine.gradient_accumulation_steps(),
    "gradient_clipping": lambda engine: engine.gradient_clipping(),
    "bf16": lambda engine: engine.bfloat16_enabled(),
    "zero_optimization.stage": lambda engine: int(engine.zero_optimization_stage()),
    "zero_optimization.overlap_comm": lambda engine: engine.zero_overlap_comm(),
    "zero_optimization.stage3_param_persistence_threshold": lambda engine: engine.zero_param_persistence_threshold(),
    "zero_optimization.reduce_bucket_size": lambda engine: engine.zero_reduce_bucket_size(),
    "zero_optimization.offload_optimizer": lambda engine: engine.zero_offload_optimizer() is not None,
    "zero_optimization.offload_param": lambda engine: engine.zero_offload_param() is not None,
    "zero_force_ds_cpu_optimizer": lambda engine: engine.zero_force_ds_cpu_optimizer(),
    "zero_allow_untested_optimizer": lambda engine: engine.zero_allow_untested_optimizer(),
    "managed_gradient_accumulation": lambda engine: engine.managed_gradient_accumulation(),
    "steps_per_print": lambda engine: engine.steps_per_print(),
}
"""How the engine reads each setting: unknown top-level names are dropped without a word."""

ASKED_OF_THE_MPU = {
    "get_data_parallel_group",
    "get_data_parallel_group_ranks",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_model_parallel_group",
    "get_model_parallel_rank",
    "get_model_parallel_world_size",
}
LOOKED_FOR_IN_THE_MPU = {
    # Answers to these would take precedence over those above.
    "get_sequence_data_parallel_group",
    "get_sequence_data_parallel_rank",
    "get_sequence_data_parallel_world_size",
    "get_sequence_parallel_world_size",
    "get_slice_parallel_rank",
    "get_tensor_model_parallel_rank",
    "initialize_sequence_parallel",
}


def missing(holder: object, names: dict[str, str], of: str) -> list[str]:
    return [moved(f"{of}.{name}", belief) for name, belief in names.items() if not hasattr(holder, name)]


def lost_names(rank: int, world: int, stages: tuple[int, ...]) -> list[str]:
    return [sentence for stage in stages for sentence in lost_of_stage(rank, Layout(dp=world, zero_stage=stage))]


def lost_of_stage(rank: int, layout: Layout) -> list[str]:
    engine, stage = build(rank, layout), layout.zero_stage
    step_once(engine, rank)
    lost = missing(engine, ENGINE, "DeepSpeedEngine")
    lost += missing(engine.optimizer, OPTIMIZER.get(stage, {}), type(engine.optimizer).__name__)
    if stage == 3:
        for parameter in engine.module.parameters():
            lost += missing(parameter, PARAMETER_OF_ZERO_3, "Parameter")
    net = Cut(rank)
    wanted = {
        "train_micro_batch_size_per_gpu": TRAIN.micro_batch,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": TRAIN.grad_clip,
        "bf16": False,
        "zero_optimization.stage": stage,
        "zero_optimization.overlap_comm": torch.cuda.is_available(),
        "zero_optimization.stage3_param_persistence_threshold": 0,
        "zero_optimization.reduce_bucket_size": sum(p.numel() for p in (net.part, net.copy)),
        "zero_optimization.offload_optimizer": False,
        "zero_optimization.offload_param": False,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "managed_gradient_accumulation": True,
        "steps_per_print": 10**9,
    }
    for setting, read in SETTINGS.items():
        if read(engine) != wanted[setting]:
            lost.append(moved(f"the setting {setting}", f"{wanted[setting]} was asked for, {read(engine)} holds"))
    engine.destroy()
    return lost


@TOGETHER
def test_every_private_name_and_setting_that_is_used_is_there(stages: tuple[int, ...]) -> None:
    for lost in run_ranks(2, lost_names, stages):
        assert not lost, "\n".join(lost)


def test_the_pinned_version_is_the_one_that_is_installed() -> None:
    constraints = Path(__file__).parents[2] / "constraints.txt"
    assert f"deepspeed=={PINNED}" in constraints.read_text().split(), (
        f"constraints.txt pins another DeepSpeed than {PINNED}, for which train/deepspeed_adapter.py was written; "
        "read what changed in it, then raise PINNED here."
    )
    assert deepspeed.__version__.split(".")[:2] == PINNED.split(".")[:2], moved("everything", "another minor version")


class Asked(deepspeed_adapter.ModelParallelUnit):
    """Notes every public name that DeepSpeed looks for."""

    names: set[str]

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "names":
            self.names.add(name)
        return super().__getattribute__(name)


def asked(rank: int, world: int) -> tuple[set[str], list[str]]:
    Asked.names = names = set()
    deepspeed_adapter.ModelParallelUnit = Asked
    wrong: list[str] = []
    for layout in [Layout(pp=world), *(Layout(tp=world, zero_stage=stage) for stage in range(4))]:
        engine = build(rank, layout)
        if layout.pp == 1:
            step_once(engine, rank)
        if layout.zero_stage:
            zero = engine.optimizer
            for name, size in (("dp_process_group", 1), ("model_parallel_group", 2)):
                if dist.get_world_size(getattr(zero, name)) != size:
                    wrong.append(moved(f"{type(zero).__name__}.{name}", f"it is the mpu's, of {size} ranks"))
            if zero.model_parallel_rank != 1:
                wrong.append(moved("model_parallel_rank", "the mpu's answer, 1, so that no unmarked parameter counts"))
        engine.destroy()
    return names, wrong


def test_deepspeed_asks_the_mpu_what_it_answers_and_nothing_else() -> None:
    for names, wrong in run_ranks(2, asked):
        assert not wrong, "\n".join(wrong)
        new = names - ASKED_OF_THE_MPU - LOOKED_FOR_IN_THE_MPU
        assert not new, moved(f"mpu.{sorted(new)}", "was never asked for; an answer may now be needed")
    answers = {name for name in vars(deepspeed_adapter.ModelParallelUnit) if not name.startswith("_")}
    assert answers == ASKED_OF_THE_MPU


def process_wide(rank: int, world: int) -> dict[str, float]:
    from deepspeed.comm import comm

    known = "deepspeed_shm_comm" in deepspeed.ops.__compatible_ops__
    deepspeed_adapter.init_distributed(60)
    clock, tensor = deepspeed_adapter.install_clock(), torch.ones(1000)
    started = perf_counter()
    for _ in range(100):
        deepspeed.comm.all_reduce(tensor)
    wall = perf_counter() - started
    return {
        "op known": known,
        "op built": comm.cdb.shm_comm_op is not None,
        "share of wall": clock.take() / wall,
        "log level": deepspeed.utils.logger.level,
    }


def test_process_wide_state_is_where_the_adapter_writes_it() -> None:
    for found in run_ranks(2, process_wide):
        shm = moved("ops.__compatible_ops__['deepspeed_shm_comm']", "False keeps the op from being compiled")
        assert found["op known"] and not found["op built"], shm
        # Running sums, had the timers not been reset, would be fifty times the wall clock.
        clock = moved("comm.comm.comms_logger or timers", "each collective's own milliseconds reach `append`")
        assert 0.05 < found["share of wall"] <= 1, clock
        assert found["log level"] >= logging.WARNING, moved("utils.logger", "it is silent about what goes well")
