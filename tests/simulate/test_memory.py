from __future__ import annotations

import numpy as np
import pytest

from elasmo.simulate.accelerator import GIB
from elasmo.simulate.describe import known_model
from elasmo.simulate.memory import in_flight, rank_parameters, state_bytes, training_memory
from elasmo.simulate.plan import Plan
from elasmo.simulate.published import read_table
from elasmo.simulate.validate import korthikanti_points


def test_model_states_are_those_of_the_zero_paper() -> None:
    """Rajbhandari et al. 2020, table 1, from its formula."""
    for row in read_table("T15_zero_memory_formula"):
        got = state_bytes(float(row["params_b"]) * 1e9, int(row["dp"]), int(row["zero_stage"])).total / 1e9
        assert got == pytest.approx(float(row["model_state_gb_per_gpu"]), rel=1e-3, abs=6e-4), row


def test_activations_are_those_that_korthikanti_measured() -> None:
    """Korthikanti et al. 2022, figures 1 and 7."""
    points = [point for point in korthikanti_points() if point.row.startswith("activ")]
    assert len(points) >= 20
    assert np.median([point.error for point in points]) < 0.01
    assert max(point.error for point in points) < 0.02


def test_ranks_of_all_stages_hold_the_whole_model_once() -> None:
    model = known_model("Llama-3-70B")
    plan = Plan(seq=4096, global_batch=8, tp=4, pp=8)
    held = sum(sum(rank_parameters(model, plan, rank)) * plan.tp for rank in range(plan.pp))
    assert held == pytest.approx(model.parameters, rel=1e-4)


def test_experts_are_spread_and_the_rest_is_not() -> None:
    model = known_model("Mixtral-8x7B")
    dense, experts = rank_parameters(model, Plan(seq=4096, global_batch=8, dp=8, ep=8), 0)
    assert experts * 8 == model.expert_parameters
    assert dense == model.parameters - model.expert_parameters


def test_recompute_and_sequence_parallelism_save_activations() -> None:
    model = known_model("Llama-3-8B")
    plan = Plan(seq=8192, global_batch=8, tp=8)
    none = training_memory(model, plan).activations
    spread = training_memory(model, plan.having(sequence_parallel=True)).activations
    full = training_memory(model, plan.having(sequence_parallel=True, recompute=frozenset({"full"}))).activations
    assert full < spread < none


@pytest.mark.parametrize(("stage", "share"), [(1, 6 / 18), (2, 2 / 18), (3, 0.0)])
def test_zero_cuts_what_its_stage_names(stage: int, share: float) -> None:
    states = state_bytes(1e9, 1 << 20, stage, gradient_bytes=4.0)
    assert states.total / 18e9 == pytest.approx(share, abs=1e-3)


def test_the_first_stage_keeps_a_micro_batch_for_every_stage() -> None:
    plan = Plan(seq=1, global_batch=64, pp=8)
    assert [in_flight(plan, rank) for rank in (0, 7)] == [8, 1]
    assert in_flight(plan.having(schedule="gpipe"), 0) == 64


def test_a_measured_peak_of_a_mixture_of_experts_is_met() -> None:
    """Megatron-Bridge's Qwen3 30B-A3B on 16 H100: 62.2 GB."""
    plan = Plan(seq=4096, global_batch=1024, dp=16, ep=16)
    assert training_memory(known_model("Qwen3-30B-A3B"), plan).total / GIB == pytest.approx(62.2, rel=0.08)
