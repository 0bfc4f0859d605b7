"""What one CUDA device should show before a cluster is trusted: parity in bfloat16, MFU of a 1 B model, resume.

    benchmarks/device_check.sh        (at most 8 minutes on one H200)

Prints one markdown table; every row says what was compared with what.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from elasmo.config import DecoderConfig, ModelConfig, TrainConfig
from elasmo.model.attention import NaivePackedAttention, PackedAttention
from elasmo.model.batch import pack
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.parallel.layout import Layout
from elasmo.train import deepspeed_adapter
from elasmo.train.engine import TrainEngine

VOCAB = 32_000
SMALL = DecoderConfig(hidden=512, layers=4, heads=8, kv_heads=4, ffn=1376, max_seq=4096, qk_norm=True)
LARGE = DecoderConfig(hidden=2048, layers=18, heads=16, kv_heads=8, ffn=5632, max_seq=4096, tie_embeddings=True)
TOKENS, SLOTS, STEPS = 16_384, 2, 8


def text_model(decoder: DecoderConfig) -> MultimodalDecoder:
    model = MultimodalDecoder(ModelConfig(decoder=decoder, vision=None, audio=None, table=None), VOCAB)
    model.init_weights(0)
    return model


def texts(seed: int, total: int, longest: int) -> list[Encoded]:
    """Samples of random lengths that fill `total` tokens exactly."""
    random, made = np.random.default_rng(seed), []
    left = total
    while left:
        length = min(left, int(random.integers(longest // 8, longest + 1)))
        tokens = random.integers(8, VOCAB, length).astype(np.int32)
        made.append(Encoded.of_tokens(tokens, np.ones(length, np.uint8)))
        left -= length
    return made


def row(check: str, measured: str, expected: str, good: bool) -> None:
    print(f"| {check} | {measured} | {expected} | {'ok' if good else 'NOT OK'} |", flush=True)


def parity() -> None:
    """Losses and gradients on the device against float32 on the CPU."""
    reference, model = text_model(SMALL), text_model(SMALL).to("cuda", torch.bfloat16)
    batch = pack(texts(1, 2048, 600))
    reference.target_losses(batch)[0].mean().backward()
    wanted = float(reference.target_losses(batch)[0].detach().mean())
    found = model.target_losses(batch.to("cuda"))[0].mean()
    found.backward()
    difference = abs(float(found.detach()) - wanted) / wanted
    row("loss, bf16 on the device against fp32 on the CPU", f"{difference:.1e} relative", "<= 1e-2", difference <= 1e-2)
    worst = 1.0
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None, name
        cosine = torch.nn.functional.cosine_similarity(ours.grad.float().cpu().view(-1), theirs.grad.view(-1), dim=0)
        worst = min(worst, float(cosine))
    row("worst cosine of a gradient with the CPU's", f"{worst:.4f}", ">= 0.98", worst >= 0.98)


def attention() -> None:
    """Packed attention against its oracle, and its time against one full causal call of the same tokens."""
    lengths = [1, 7, 500, 130, 1024, 386]
    query, key, value = (torch.randn(1, heads, sum(lengths), 128, device="cuda") for heads in (16, 4, 4))
    oracle = NaivePackedAttention(lengths)
    oracle.mask = oracle.mask.cuda()
    wanted = oracle.attend(0, query, key, value)
    halves = [x.bfloat16() for x in (query, key, value)]
    found = PackedAttention(lengths).attend(0, *halves).float()
    difference = float((found - wanted).abs().max())
    row("packed attention in bf16 against the oracle", f"{difference:.1e} absolute", "<= 3e-2", difference <= 3e-2)


def gemm_peak() -> float:
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    best = 0.0
    for _ in range(10):
        torch.cuda.synchronize()
        started = time.perf_counter()
        torch.mm(a, b)
        torch.cuda.synchronize()
        best = max(best, 2.0 * 8192**3 / (time.perf_counter() - started))
    return best


def throughput() -> None:
    """MFU of a model of about a billion parameters: 6 FLOP a weight and token, causal attention within samples."""
    model = text_model(LARGE)
    parameters = sum(p.numel() for p in model.parameters())
    width = LARGE.head_size * (2 * LARGE.heads + 2 * LARGE.kv_heads)
    layer = LARGE.hidden * (width + 3 * LARGE.ffn)
    train = TrainConfig(dtype="bfloat16", micro_batch=1, global_batch=SLOTS, lr=1e-4)
    engine = TrainEngine(model.cuda(), train, Layout(dp=1, zero_stage=1, recompute="selective"), SLOTS)
    seconds = []
    flops = 0.0
    for step in range(STEPS):
        slots = [texts(100 * step + slot, TOKENS, 4096) for slot in range(SLOTS)]
        count = sum(len(sample.tokens) - 1 for samples in slots for sample in samples)
        squares = sum(len(sample.tokens) ** 2 for samples in slots for sample in samples)
        flops = 6.0 * SLOTS * TOKENS * (LARGE.layers * layer + LARGE.hidden * VOCAB)
        flops += 6.0 * LARGE.layers * squares * LARGE.heads * LARGE.head_size
        torch.cuda.synchronize()
        started = time.perf_counter()
        list(engine.step(slots, count))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    peak = gemm_peak()
    middle = statistics.median(seconds[2:])
    name = torch.cuda.get_device_name()
    print(f"| device | {name}, bf16 GEMM peak {peak / 1e12:.0f} TFLOP/s measured | | |")
    print(f"| model | {parameters / 1e9:.2f} B parameters, {SLOTS * TOKENS} tokens a step, selective recompute | | |")
    mfu = flops / middle / peak
    row("MFU of the measured peak", f"{mfu:.1%}, {SLOTS * TOKENS / middle:,.0f} tokens/s", ">= 61 %", mfu >= 0.61)
    memory = torch.cuda.max_memory_allocated() / 2**30
    print(f"| peak memory | {memory:.1f} GiB | | |")


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("No CUDA device is here; run this where one is.")
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{Path(folder) / 'rendezvous'}"
        dist.init_process_group("nccl", init_method=rendezvous, rank=0, world_size=1)
        deepspeed_adapter.init_distributed(60)
        print("| check | measured | expected | |\n| --- | --- | --- | --- |")
        parity()
        attention()
        throughput()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
