"""Steps of an engine: closed forms of weights and caches, monotone in what they do, and blind to names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from elasmo.simulate.accelerator import HardwareError, accelerator
from elasmo.simulate.deployment import Deployment, DeploymentError, precision
from elasmo.simulate.served_model import served_model
from elasmo.simulate.serving_constants import default_constants
from elasmo.simulate.serving_step import Batch, experts_hit, seconds, work

H100 = accelerator("H100")
LLAMA = Deployment(served_model("Llama-3.1-8B").model, H100)


def step_s(deployment: Deployment, batch: Batch) -> float:
    return float(seconds(work(deployment, batch), deployment, default_constants())[0])


def test_a_lone_token_takes_longer_than_reading_the_weights_and_not_twice_as_long() -> None:
    """16 GB at 3.35 TB/s is 4.5 ms (the input embedding is not read); published steps of 8 sequences take 7.3 ms."""
    floor = (LLAMA.model.parameters - 128256 * 4096) * 2 / H100.bandwidth
    assert floor < step_s(LLAMA, Batch(1, 100)) < 2 * floor


def test_keys_and_values_are_read_once_a_token() -> None:
    """131,072 bytes a token: 32 layers x 8 heads x 128 x keys and values x 2 bytes."""
    done = work(LLAMA, Batch(np.array([64.0, 64.0]), np.array([1000.0, 2000.0])))
    assert np.diff(done.cache_read_s)[0] * H100.bandwidth == pytest.approx(64 * 1000 * 131_072)


def test_a_window_bounds_what_is_read() -> None:
    gemma = Deployment(served_model("gemma-3-12b-it").model, H100)
    short, long = work(gemma, Batch(8, np.array([1024.0, 8192.0]))).cache_read_s
    assert long / short < 8 * (8 / 48) + 40 / 48 + 0.01, "40 of 48 layers see 1,024 tokens at most"


@pytest.mark.parametrize("field", ["decode", "context", "prefill", "media"])
def test_more_work_takes_no_less_time(field: str) -> None:
    model = served_model("Qwen3-VL-8B").model
    base = Batch(32.0, 500.0, 128.0, 64.0, 32.0, 0.5)
    cut = Deployment(model, H100)
    times = [step_s(cut, replace(base, **{field: getattr(base, field) * factor})) for factor in (1, 2, 4, 8)]
    assert times == sorted(times) and times[-1] > times[0]


def test_two_ranks_are_faster_than_one_but_not_twice() -> None:
    one, two = (step_s(replace(LLAMA, tp=tp), Batch(64, 1000)) for tp in (1, 2))
    assert one / 2 < two < one


def test_experts_that_a_step_reads_grow_to_all_of_them() -> None:
    experts = served_model("Qwen3-30B-A3B").model.layers[0].experts
    assert experts is not None
    hit = experts_hit(experts, np.array([1.0, 8.0, 64.0, 10_000.0]), 1.0)
    assert hit[0] == pytest.approx(8) and hit[1] == pytest.approx(128 * (1 - (1 - 8 / 128) ** 8))
    assert hit[3] == pytest.approx(128) and (np.diff(hit) > 0).all()


def test_a_name_changes_nothing() -> None:
    renamed = replace(LLAMA, model=replace(LLAMA.model, name="something else"))
    assert step_s(renamed, Batch(64, 500, 100, 50)) == step_s(LLAMA, Batch(64, 500, 100, 50))


def test_eight_bit_weights_need_a_chip_that_multiplies_them() -> None:
    with pytest.raises(HardwareError, match="fp8 has no known peak on A100"):
        Deployment(LLAMA.model, accelerator("A100"), precision=precision("fp8"))


def test_four_bit_weights_are_multiplied_in_sixteen() -> None:
    kept = precision("mxfp4")
    assert (kept.dtype, kept.dense_bytes, kept.expert_bytes) == ("bf16", 2.0, 4.25 / 8)


def test_a_model_that_does_not_fit_says_by_how_much() -> None:
    big = Deployment(served_model("Llama-3.1-70B").model, H100)
    with pytest.raises(DeploymentError, match=r"lacks \d+\.\d GB"):
        big.cache_tokens(0.92)


def test_a_degree_that_does_not_divide_names_the_nearest_that_does() -> None:
    with pytest.raises(DeploymentError, match=r"tp=3 must divide .* the nearest that does is tp=2"):
        replace(LLAMA, tp=3)


def test_ranks_beyond_the_scale_up_domain_reduce_over_the_network() -> None:
    inside, across = replace(LLAMA, tp=8), replace(LLAMA, tp=16)
    moved = [float(work(cut, Batch(256, 100)).reduce_s[0]) for cut in (inside, across)]
    assert inside.reduces_directly and not across.reduces_directly
    assert moved[1] / moved[0] == pytest.approx(450 / 50 * (15 / 16) / (7 / 8))
