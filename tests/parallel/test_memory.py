"""Bytes that a rank really holds are those of the formulas in docs/parallel.md."""

from __future__ import annotations

import gc
import time
from collections.abc import Collection

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from elasmo.config import DecoderConfig, ModelConfig, TrainConfig
from elasmo.model.attention import PackedAttention
from elasmo.model.decoder import DecoderLayer
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.rope import rotary
from elasmo.parallel.layout import Layout, Recompute
from elasmo.parallel.memory import activation_bytes, bucket_elements, state_bytes
from elasmo.parallel.recompute import recompute_layer
from elasmo.train import deepspeed_adapter
from elasmo.train.engine import TrainEngine
from tests.gloo import run_ranks
from tests.parallel import oracle

MODEL = ModelConfig(
    decoder=DecoderConfig(hidden=256, layers=4, heads=4, kv_heads=2, ffn=688, max_seq=64),
    vision=None,
    audio=None,
    table=None,
)


def storages() -> dict[int, int]:
    """Bytes of every living tensor's memory, each once."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor):
            memory = thing.untyped_storage()
            found[memory.data_ptr()] = memory.nbytes()
    return found


def living(before: Collection[int]) -> int:
    """Bytes of tensors made since; a moment later, since gloo's thread may still hold what it has just reduced."""
    time.sleep(0.05)
    return sum(size for at, size in storages().items() if at not in before)


def held(rank: int, world: int, stage: int, dtype: str) -> tuple[int, list[int]]:
    """(parameters, bytes of tensors after the first micro-batch of two, and at rest)."""
    deepspeed_adapter.init_distributed(60)
    before = storages()
    model = MultimodalDecoder(MODEL, oracle.VOCAB)
    model.init_weights(0)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    train = TrainConfig(zero_stage=stage, dtype=dtype)
    engine = TrainEngine(model, train, Layout(dp=world, zero_stage=stage), 2 * world)
    seen = []
    outputs = engine.step([oracle.slots("dense", 0)[0]] * 2, 10)
    for _ in range(2):
        next(outputs)
        gradients = [parameter.grad for parameter in model.parameters()]  # else they are known to torch alone
        seen.append(min(living(before) for _ in range(5)))
        del gradients
    return parameters, seen


CASES = [(stage, dtype) for dtype in ("float32", "bfloat16") for stage in (0, 1, 2, 3)]
QUICK, REFUSED = (2, "float32"), (0, "bfloat16")


@pytest.mark.parametrize(
    ("stage", "dtype"),
    [pytest.param(*case, marks=[] if case == QUICK else pytest.mark.full) for case in CASES if case != REFUSED],
)
def test_model_states_take_what_the_zero_formula_says(stage: int, dtype: str) -> None:
    for parameters, (accumulating, resting) in run_ranks(2, held, stage, dtype):
        wanted = state_bytes(parameters, stage, 2, dtype == "bfloat16")
        bucket = bucket_elements(parameters) * (2 if dtype == "bfloat16" else 4)
        found = accumulating - (bucket if stage in (1, 3) else 0)
        print(f"| {stage} | {dtype} | {wanted.total / parameters:.2f} | {found / parameters:.2f} |")
        assert found == pytest.approx(wanted.total, rel=0.05)
        kept = wanted.gradients + bucket if stage == 3 else 0  # ZeRO 3 keeps the memory of both
        assert resting == pytest.approx(wanted.weights + wanted.optimizer + kept, rel=0.05)


def test_what_the_formulas_leave_out_is_refused() -> None:
    with pytest.raises(ValueError, match="zero_stage=0 with bfloat16"):
        state_bytes(10, 0, 2, bfloat16=True)
    with pytest.raises(ValueError, match=r"decoder\.qk_norm is not in the formula"):
        activation_bytes(LAYER.model_copy(update={"qk_norm": True}), "none")


LENGTHS = [200, 56, 256, 512]
LAYER = DecoderConfig(hidden=256, layers=1, heads=8, kv_heads=2, ffn=704, max_seq=1024)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [LAYER, LAYER.model_copy(update={"ffn": 200, "kv_heads": 8})])
def test_a_layer_keeps_the_activations_of_the_formula(
    config: DecoderConfig, dtype: torch.dtype, recompute: Recompute
) -> None:
    """What torch allocated and did not free over a forward pass."""
    layer = DecoderLayer(config, 0).to(dtype)
    recompute_layer(layer, recompute)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    cos, sin = rotary(positions, config.head_size, config.rope_theta, None)
    attention = PackedAttention(LENGTHS)
    x = torch.randn(1, sum(LENGTHS), config.hidden, dtype=dtype, requires_grad=True)
    layer(x, cos, sin, attention).sum().backward()  # what is made once and kept for later is not counted
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        out = layer(x.clone(), cos, sin, attention)
    kept = sum(event.self_cpu_memory_usage for event in profiler.key_averages()) - out.nbytes
    found, wanted = kept / sum(LENGTHS), activation_bytes(config, recompute, dtype == torch.bfloat16)
    print(f"| {recompute} | {dtype} | {wanted:.0f} | {found:.0f} |")
    assert found == pytest.approx(wanted, rel=0.02)
