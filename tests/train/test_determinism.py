"""A seed is the whole randomness: the same run twice gives the same losses and weights, bit for bit."""

from __future__ import annotations

import hashlib

import pytest

from elasmo.parallel.layout import Layout
from elasmo.train import deepspeed_adapter
from elasmo.train.engine import TrainEngine
from tests.gloo import run_ranks
from tests.parallel import layout_run, oracle


def trained(rank: int, world: int, dtype: str, seed: int) -> tuple[list[float], str]:
    """Losses of three steps, and a digest of the weights that this rank updates."""
    deepspeed_adapter.init_distributed(60)
    model = oracle.make_model("multimodal")
    model.init_weights(seed)
    layout = Layout(dp=world, zero_stage=2)
    train = oracle.TRAIN.model_copy(update={"dtype": dtype, "zero_stage": 2})
    engine = TrainEngine(model, train, layout, oracle.SLOTS)
    losses = [layout_run.run_step(engine, "multimodal", step) for step in range(oracle.STEPS)]
    digest = hashlib.sha256()
    for owned in deepspeed_adapter.owned_slices(engine.deepspeed):
        digest.update(owned.weight.numpy().tobytes())
    return losses, digest.hexdigest()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_runs_of_a_seed_are_bit_equal_and_another_seed_is_not(dtype: str) -> None:
    first, second, other = (run_ranks(2, trained, dtype, seed) for seed in (3, 3, 4))
    assert first == second
    assert first[0][0] != other[0][0] and first[0][1] != other[0][1]
