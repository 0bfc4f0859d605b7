from __future__ import annotations

import math
from dataclasses import replace

import pytest

from elasmo.simulate.accelerator import HardwareError
from elasmo.simulate.calibration import default_calibration
from elasmo.simulate.cluster import parse_cluster
from elasmo.simulate.describe import known_model
from elasmo.simulate.goodput import Failures
from elasmo.simulate.ladder import (
    ATTENTION,
    EVERYTHING,
    INTERLEAVING,
    INTERVENTIONS,
    OVERLAP,
    PACKING,
    PRECISION,
    RECOMPUTE,
    SHARDING,
    STREAMING,
    Case,
    Ladder,
    applied,
    climb,
    outcome,
    plans,
    rung,
    start_dtype,
)
from elasmo.simulate.layer_cost import layer_cost
from elasmo.simulate.memory import training_memory
from elasmo.simulate.named import named_model
from elasmo.simulate.plan import Plan
from elasmo.simulate.power import power_w
from elasmo.simulate.samples import Samples
from elasmo.simulate.training import make_rank, simulate_step

MODEL, CLUSTER = known_model("Llama-3-8B"), parse_cluster("16xH100")
TEXT = Case(MODEL, CLUSTER, 4096, 64)
SAFE = Failures(mtbf_h=1e15, checkpoint_s=1e-9)
PIPELINE = Plan(
    seq=4096, global_batch=64, dp=1, tp=4, pp=4, chunks=4, schedule="interleaved", sequence_parallel=True,
    attention_version=3, overlap_tp=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def made() -> Ladder:
    llava = named_model("llava-7b")
    return climb(
        Case(llava, parse_cluster("8xA100"), 2048, 64, samples=Samples(900, 0.5, 0.25), fixed=(("micro_batch", 2),))
    )


def test_every_intervention_helps_or_costs_nothing(made: Ladder) -> None:
    rates = [each.tokens_per_s for each in made.cumulative if each is not None]
    assert len(rates) == 9 and rates == sorted(rates)
    assert made.last is not None and made.first is not None
    for name in INTERVENTIONS:
        out, alone = made.without[name], made.alone[name]
        assert out is not None and out.tokens_per_s <= made.last.tokens_per_s
        assert alone is not None and alone.tokens_per_s >= made.first.tokens_per_s


def test_what_is_switched_off_and_on_again_is_what_it_was(made: Ladder) -> None:
    case = made.case
    for name in (PRECISION, PACKING, STREAMING):
        off = rung(case, EVERYTHING - {name})
        assert off == made.without[name] != made.last
        assert rung(case, (EVERYTHING - {name}) | {name}) == made.last
    candidate = case.candidates[0]
    assert applied(case, candidate, EVERYTHING) == applied(case, candidate, frozenset(INTERVENTIONS))


def test_money_follows_time_and_energy_follows_power(made: Ladder) -> None:
    for each in made.cumulative:
        assert each is not None and each.usd_per_mtoken is not None
        assert each.usd_per_mtoken == pytest.approx(8 * 2.21 / 3600 / each.tokens_per_s * 1e6)
    case = replace(TEXT, failures=SAFE)
    plan = next(plans(case, EVERYTHING))
    each = outcome(case, plan, EVERYTHING)
    assert each.step.power_w is not None
    assert each.joules_per_token == pytest.approx(16 * each.step.power_w / each.tokens_per_s, rel=1e-4)


def test_mixed_precision_halves_the_products_of_half_the_peak() -> None:
    """H100: 494.5 TFLOP/s of tf32, 989 of bf16; activations, weights and messages have 4 bytes in place of 2."""
    plan = Plan(seq=4096, global_batch=64, dp=2, tp=8, zero=1, sequence_parallel=True)
    half, whole = (applied(TEXT, plan, on) for on in (EVERYTHING, EVERYTHING - {PRECISION}))
    assert half is not None and whole is not None and (half.width, whole.width) == (2, 4)
    a, b = (simulate_step(MODEL, each, CLUSTER) for each in (half, whole))
    assert b.breakdown["matmul"] / a.breakdown["matmul"] == pytest.approx(2, rel=0.03)
    rank = make_rank(CLUSTER.groups[0], default_calibration())
    costs = [layer_cost(rank, 4096, MODEL.layers[0], each, 4096, 4096, True) for each in (half, whole)]
    assert costs[1].forward.pointwise / costs[0].forward.pointwise == pytest.approx(2, rel=0.25)  # launches stay
    assert b.breakdown["tp"] / a.breakdown["tp"] == pytest.approx(2, rel=0.15)  # latencies stay
    assert b.memory.weights == 2 * a.memory.weights and b.memory.optimizer == pytest.approx(a.memory.optimizer * 8 / 12)


def test_fused_attention_saves_the_scores_in_memory_and_their_way_through_it() -> None:
    """Softmax's output of every pair in 16 bits; forward it passes memory 4 times and backward 7.5."""
    plan = Plan(seq=4096, global_batch=64, dp=2, tp=8, sequence_parallel=True)
    fused, plain = (applied(TEXT, plan, on) for on in (EVERYTHING, EVERYTHING - {ATTENTION}))
    assert fused is not None and plain is not None
    pairs = 32 / 8 * 4096**2
    kept = training_memory(MODEL, plain).activations - training_memory(MODEL, fused).activations
    assert kept == pytest.approx(32 * pairs * 2, rel=1e-6)
    seconds = simulate_step(MODEL, plain, CLUSTER).breakdown["attention"]
    stream = 11.5 * 2 * pairs * 32 * 32 / (3.35e12 * default_calibration().of("memory", "hopper"))
    products = 3 * 2 * pairs * 2 * 128 * 32 * 32 / 989e12
    assert stream + products < seconds < stream + 4 * products


def test_a_sharded_optimizer_divides_its_bytes_by_the_ranks() -> None:
    plan = Plan(seq=4096, global_batch=64, dp=2, tp=8, zero=1, sequence_parallel=True)
    cut, whole = (applied(TEXT, plan, on) for on in (EVERYTHING, EVERYTHING - {SHARDING}))
    assert cut is not None and whole is not None
    assert training_memory(MODEL, whole).optimizer == pytest.approx(12 * MODEL.parameters / 8, rel=1e-3)
    assert training_memory(MODEL, whole).optimizer == 2 * training_memory(MODEL, cut).optimizer
    assert applied(TEXT, plan.having(zero=3), EVERYTHING - {SHARDING}) is None


def test_without_selective_recompute_all_or_nothing_is_kept_on_every_rank() -> None:
    for plan in plans(replace(TEXT, fixed=(("tp", 8),)), EVERYTHING - {RECOMPUTE}):
        assert plan.recompute in (frozenset(), frozenset({"full"})) and not plan.sequence_parallel


def test_packing_is_paid_by_what_padding_wastes() -> None:
    """Samples of a quarter of the sequence: four times the useful products, a quarter of the pairs in attention."""
    case = replace(TEXT, samples=Samples(1024), failures=SAFE)
    plan = Plan(seq=4096, global_batch=64, dp=2, tp=8, sequence_parallel=True, attention_version=3)
    steps = []
    for on in (EVERYTHING, EVERYTHING - {PACKING}):
        shaped = applied(case, plan, on)
        assert shaped is not None
        steps.append(outcome(case, shaped, on))
    packed, padded = steps
    assert (packed.useful, padded.useful) == (1.0, 0.25)
    assert packed.step.breakdown["matmul"] == padded.step.breakdown["matmul"]
    assert packed.step.breakdown["attention"] < 0.5 * padded.step.breakdown["attention"]
    assert packed.mfu / packed.tokens_per_s == pytest.approx(padded.mfu / padded.tokens_per_s)  # the same work a token
    assert packed.tokens_per_s > 4 * padded.tokens_per_s


def test_one_stream_of_text_has_nothing_to_pack_and_nothing_to_decode() -> None:
    plan = Plan(seq=4096, global_batch=64, dp=2, tp=8, sequence_parallel=True)
    each, other = (outcome(TEXT, plan, on) for on in (EVERYTHING, EVERYTHING - {PACKING}))
    assert replace(each, on=other.on) == other
    slow = outcome(replace(TEXT, media_per_s=1e-3), plan, EVERYTHING - {STREAMING})
    assert slow.step.seconds == each.step.seconds


def test_uneven_media_cost_what_the_rank_with_most_takes() -> None:
    """The expected largest of dp sums is about spread sqrt(2 ln dp / samples) above their mean."""
    case = Case(
        named_model("llava-7b"), parse_cluster("8xA100"), 2048, 64, samples=Samples(2048, 0.0, 1.0), failures=SAFE
    )
    plan = Plan(seq=2048, global_batch=64, dp=8, zero=1, micro_batch=8, attention_version=3)
    even, uneven = (outcome(case, plan, on) for on in (EVERYTHING, EVERYTHING - {PACKING}))
    plain = replace(case.model, towers=())
    tower = even.step.breakdown["matmul"] - simulate_step(plain, plan, case.cluster).breakdown["matmul"]
    more = uneven.step.breakdown["matmul"] - even.step.breakdown["matmul"]
    assert more / tower == pytest.approx(math.sqrt(2 * math.log(8) / 8), rel=0.1)


def test_interleaving_divides_the_bubble_by_the_chunks() -> None:
    """Narayanan et al. 2021, section 2.2, less what their sends show."""
    assert applied(TEXT, PIPELINE, EVERYTHING - {INTERLEAVING}) is None
    one = PIPELINE.having(chunks=1, schedule="1f1b")
    many, single = (simulate_step(MODEL, plan, CLUSTER).breakdown["bubble"] for plan in (PIPELINE, one))
    send = make_rank(CLUSTER.groups[0], default_calibration()).links.send(4096 * 4096 * 2 / 4, 4)
    assert many == pytest.approx((single - 2 * 3 * send) / 4 + 2 * (3 + 4 * 64) * send, rel=0.1)


def test_overlap_hides_all_but_its_contention() -> None:
    """Without: gradients in 4 bytes, weights back in 2, over the links; with: a share of that."""
    plan = Plan(seq=4096, global_batch=64, dp=16, zero=1)
    beside, alone = (applied(TEXT, plan, on) for on in (EVERYTHING, EVERYTHING - {OVERLAP}))
    assert beside is not None and alone is not None
    shown, whole = (simulate_step(MODEL, each, CLUSTER).breakdown["gradients"] for each in (beside, alone))
    known = default_calibration()
    up = MODEL.parameters * 6 * 7 / 8 / (450e9 * known.of("scaleup", "hopper"))
    out = MODEL.parameters * 6 / 8 * 1 / 2 / (50e9 * known.of("network", "hopper"))
    assert whole == pytest.approx(max(up, out), rel=0.02)
    assert shown == pytest.approx(whole * known.of("contention", "hopper"), rel=0.02)


def test_overlap_is_of_sharded_weights_too() -> None:
    plan = Plan(seq=4096, global_batch=64, dp=16, zero=3)
    beside, alone = (simulate_step(MODEL, plan.having(overlap_dp=each), CLUSTER) for each in (True, False))
    layers = MODEL.decoder_parameters - MODEL.embedding_parameters
    moved = layers * (2 + 2 + 4) * 7 / 8 / (450e9 * default_calibration().of("scaleup", "hopper"))
    assert alone.breakdown["fsdp"] > 0.9 * 4 * moved  # four micro-batches gather twice and scatter once
    assert beside.breakdown["fsdp"] < 0.5 * alone.breakdown["fsdp"]


def test_streaming_hides_decoding_and_goes_on_without_the_lost_node() -> None:
    llava = Case(named_model("llava-7b"), parse_cluster("8xA100"), 2048, 64, media_per_s=10.0, failures=SAFE)
    plan = Plan(seq=2048, global_batch=64, dp=8, zero=3, attention_version=3)
    on, off = (outcome(llava, plan, each) for each in (EVERYTHING, EVERYTHING - {STREAMING}))
    assert off.seconds - off.step.seconds == pytest.approx(64 / 10, rel=1e-3)  # one host decodes ten pictures a second
    assert on.seconds == pytest.approx(max(off.step.seconds, 6.4), rel=1e-3)
    lossy = replace(llava, failures=Failures(mtbf_h=800), media_per_s=1e9)
    on, off = (outcome(lossy, plan, each) for each in (EVERYTHING, EVERYTHING - {STREAMING}))
    hours = 800 / 8
    assert 1 / off.goodput - 1 > (180 + 1800) / 3600 / hours  # restart and replacement for each failure
    assert on.goodput > off.goodput


def test_waiting_draws_the_power_of_an_idle_accelerator() -> None:
    llava = Case(named_model("llava-7b"), parse_cluster("8xA100"), 2048, 64, media_per_s=0.01, failures=SAFE)
    plan = Plan(seq=2048, global_batch=64, dp=8, zero=3, attention_version=3)
    off = outcome(llava, plan, EVERYTHING - {STREAMING})
    idle = power_w(llava.cluster.groups[0].chip, 0, 0, 0)
    assert idle is not None and off.joules_per_token is not None
    assert off.joules_per_token * off.tokens_per_s / 8 == pytest.approx(idle, rel=0.02)


def test_a_start_without_a_known_peak_is_none_and_never_another_chips() -> None:
    assert start_dtype(CLUSTER) == "tf32" and start_dtype(parse_cluster("8xH100"), "fp32") == "fp32"
    assert start_dtype(parse_cluster("8xTPU v5p")) is None
    with pytest.raises(HardwareError, match="dtype=tf32"):
        start_dtype(parse_cluster("8xTPU v5p"), "tf32")
    case = Case(MODEL, parse_cluster("8xTPU v5p"), 4096, 64, start=None)
    plan = applied(case, Plan(seq=4096, global_batch=64, dp=8), frozenset())
    assert plan is not None and plan.dtype == "bf16"


def test_a_model_that_nothing_makes_fit_has_no_rung() -> None:
    case = Case(known_model("Llama-3-70B"), parse_cluster("8xA100"), 2048, 8, fixed=(("tp", 8),))
    assert rung(case, frozenset()) is None
