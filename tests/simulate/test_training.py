from __future__ import annotations

from dataclasses import replace

import pytest

from elasmo.simulate.cluster import parse_cluster
from elasmo.simulate.describe import known_model
from elasmo.simulate.flops import step_flops
from elasmo.simulate.model import Attention, CrossBlock, FeedForward, Model, Resampler, Tower
from elasmo.simulate.plan import Plan, PlanError, refusals
from elasmo.simulate.training import simulate_step

LLAMA = known_model("Llama-3-8B")
PLAN = Plan(seq=8192, global_batch=64, micro_batch=1, dp=8, zero=3, recompute=frozenset({"full"}))
H100 = parse_cluster("8xH100")


def test_the_breakdown_adds_up_and_rates_agree() -> None:
    step = simulate_step(LLAMA, PLAN, H100)
    assert sum(step.breakdown.values()) == pytest.approx(step.seconds)
    assert step.tokens_per_s == pytest.approx(64 * 8192 / step.seconds)
    assert step.mfu == pytest.approx(step_flops(LLAMA, 8192, 64) / step.seconds / (8 * 989e12))
    assert step.hfu == pytest.approx(step.mfu * 4 / 3)
    assert step.usd_per_mtoken == pytest.approx(8 * 4.25 / 3600 / step.tokens_per_s * 1e6)
    assert step.power_w is not None and 150 < step.power_w <= 700
    assert step.joules_per_token == pytest.approx(8 * step.power_w / step.tokens_per_s)


def test_a_name_changes_nothing() -> None:
    renamed = replace(LLAMA, name="Switch-XXL-on-everything")
    assert simulate_step(renamed, PLAN, H100) == simulate_step(LLAMA, PLAN, H100)


def test_the_played_pipeline_takes_what_the_closed_form_says() -> None:
    model = known_model("Llama-3-70B")
    plan = Plan(seq=4096, global_batch=64, tp=8, pp=4, chunks=5, dp=2, schedule="interleaved", sequence_parallel=True)
    fast, played = (simulate_step(model, plan, parse_cluster("64xH100"), events=each) for each in (False, True))
    assert played.seconds == pytest.approx(fast.seconds, rel=0.05)
    assert played.timeline is not None and len(played.timeline.events) == 2 * 4 * 5 * 32


def test_more_work_takes_longer_and_faster_hardware_less() -> None:
    step = simulate_step(LLAMA, PLAN, H100)
    assert simulate_step(LLAMA, PLAN.having(global_batch=128), H100).seconds > 1.8 * step.seconds
    assert simulate_step(LLAMA, PLAN, parse_cluster("8xA100")).seconds > 1.5 * step.seconds
    assert simulate_step(LLAMA, PLAN, parse_cluster("8xB200")).seconds < step.seconds
    assert simulate_step(LLAMA, PLAN.having(recompute=frozenset()), H100).seconds < step.seconds
    assert simulate_step(LLAMA, PLAN.having(dtype="fp8"), H100).seconds < step.seconds


def test_more_experts_a_token_take_longer() -> None:
    cluster, plan = parse_cluster("64xH100"), Plan(seq=4096, global_batch=256, dp=64, ep=8, zero=1)
    model = known_model("Mixtral-8x7B")
    wider = replace(
        model,
        layers=tuple(
            replace(layer, experts=replace(layer.experts, top_k=4)) for layer in model.layers if layer.experts
        ),
    )
    assert simulate_step(wider, plan, cluster).seconds > 1.3 * simulate_step(model, plan, cluster).seconds


def test_a_group_of_slower_accelerators_sets_the_pace_of_a_mixed_fleet() -> None:
    mixed = simulate_step(LLAMA, PLAN, parse_cluster("4xH100+4xA100"))
    assert mixed.seconds >= 0.95 * simulate_step(LLAMA, PLAN, parse_cluster("8xA100")).seconds


def test_slow_data_stalls_only_what_compute_does_not_hide() -> None:
    step = simulate_step(LLAMA, PLAN, H100)
    assert simulate_step(LLAMA, PLAN, H100, data_s=step.seconds / 2).seconds == step.seconds
    stalled = simulate_step(LLAMA, PLAN, H100, data_s=step.seconds + 3)
    assert stalled.breakdown["data stall"] == pytest.approx(3)


def vision(frozen: bool, spread: float = 0.0) -> Model:
    attention = Attention(16, 16, 64, 64, bias=True, out_bias=True)
    tower = Tower(
        "vision", 1024, 24, attention, FeedForward(4096, False, True), 577, 576, (1024, 4096, 4096), frozen=frozen,
        media=4.0, spread=spread,
    )  # fmt: skip
    return replace(LLAMA, towers=(tower,))


def test_a_frozen_tower_costs_its_forward_pass_only() -> None:
    plain, frozen, trained = (simulate_step(m, PLAN, H100).seconds for m in (LLAMA, vision(True), vision(False)))
    assert plain < frozen < trained
    assert (trained - plain) / (frozen - plain) > 2


def test_uneven_media_wait_for_the_rank_with_most() -> None:
    assert simulate_step(vision(False, 1.0), PLAN, H100).seconds > simulate_step(vision(False), PLAN, H100).seconds


def test_a_frozen_decoder_needs_no_optimizer_state() -> None:
    frozen = replace(vision(False), frozen_decoder=True)
    whole, part = (simulate_step(model, PLAN, H100).memory for model in (vision(False), frozen))
    assert part.optimizer < 0.1 * whole.optimizer


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tp": 3}, "tp=3 must divide heads=32; the nearest is tp=2"),
        ({"pp": 64}, "pp=64 x chunks=1 exceeds layers=32"),
        ({"ep": 2}, "ep=2 needs a model with experts"),
        ({"dp": 4}, "dp x tp x pp x cp = 4 must be the 8 accelerators"),
        ({"dp": 128}, "global_batch=64 is less than dp=128"),
        ({"zero": 4}, "zero=4 must be 0, 1, 2 or 3"),
        ({"micro_batch": 0}, "micro_batch=0 must be at least 1"),
    ],
)
def test_an_impossible_plan_is_refused_with_what_would_be(changes: dict[str, int], reason: str) -> None:
    plan = PLAN.having(**changes)
    assert any(each.startswith(reason) for each in refusals(plan, LLAMA, 8))
    with pytest.raises(PlanError, match=reason.split(";")[0].replace("(", r"\(")):
        simulate_step(LLAMA, plan, H100)


def test_gated_cross_attention_costs_its_blocks_and_keeps_the_sequence_short() -> None:
    """Flamingo beside LLaVA: 64 latents a picture instead of 576 tokens in the sequence, but blocks in every layer."""
    block = CrossBlock(32, FeedForward(16384, False))
    seen = vision(True).towers[0]
    sampled = replace(seen, tokens=1, resampler=Resampler(4096, 64, 6, 32, 16384))
    flamingo = replace(
        LLAMA,
        layers=tuple(replace(layer, cross=block) for layer in LLAMA.layers),
        towers=(sampled,),
        frozen_decoder=True,
    )
    plain, crossed = simulate_step(LLAMA, PLAN, H100), simulate_step(flamingo, PLAN, H100)
    weights = 2 * 4096**2 + 2 * 4096 * 16384
    more = 6 * weights * 32 * 8192 * 64 / (8 * 989e12 * 0.75)  # frozen weights around it save as much as this adds
    assert crossed.seconds > 0.5 * plain.seconds
    assert crossed.seconds - simulate_step(replace(LLAMA, frozen_decoder=True), PLAN, H100).seconds > 0.5 * more
    assert crossed.memory.optimizer < plain.memory.optimizer


def test_hardware_flops_count_attention_that_is_computed_again() -> None:
    """Korthikanti et al. 2022, equation 9 against 8: a forward pass of attention more."""
    step = simulate_step(LLAMA, PLAN.having(recompute=frozenset({"attention"})), H100)
    pairs = 4 * 32 * 128 * (8192 + 1) / 2 * 32
    assert (step.hfu - step.mfu) * step.seconds * 8 * 989e12 == pytest.approx(pairs * 64 * 8192, rel=1e-9)
