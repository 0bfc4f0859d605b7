"""What a checkpoint costs training: the stall of the loop, the steps beside the write, writing and restoring.

    python benchmarks/checkpoint.py --rounds 3

A decoder of about 100 M parameters trains in one process on the CPU, through DeepSpeed as in a run. Prints the table
of checkpoint.md: medians, with the smallest and the largest in brackets.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from elasmo.config import DecoderConfig, ModelConfig, TrainConfig
from elasmo.model.encoded import Encoded
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.parallel.layout import Layout
from elasmo.train import checkpoint, deepspeed_adapter
from elasmo.train.checkpoint_saver import CheckpointSaver, Saved
from elasmo.train.engine import TrainEngine
from elasmo.train.host_memory import keep_freed_memory

VOCAB, TOKENS, STEPS = 8_000, 64, 4
MODEL = ModelConfig(
    decoder=DecoderConfig(hidden=768, layers=12, heads=12, kv_heads=12, ffn=2048, tie_embeddings=False),
    vision=None,
    audio=None,
    table=None,
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        deepspeed_adapter.init_distributed(60)
        measure(Path(folder), options.rounds, options.threads)


def measure(folder: Path, rounds: int, threads: int) -> None:
    model = MultimodalDecoder(MODEL, VOCAB, ())
    model.init_weights(0)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    engine = TrainEngine(model, TrainConfig(zero_stage=1), Layout(), 1)
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    folder = folder / "checkpoints"
    background, foreground = (
        CheckpointSaver(folder, 0, lambda value: [value], asynchronous) for asynchronous in (True, False)
    )
    saved: list[Saved] = []
    number = 0
    one_step(engine)
    for round_number in range(rounds + 1):  # the first warms up: it takes the host buffers
        plain = [one_step(engine) for _ in range(STEPS)]
        number += 1
        stall = background.save(take(engine), number, {"optimizer_step": number}, saved.append)
        beside = []
        while len(saved) < 2 * round_number + 1:
            beside.append(one_step(engine))
        background.finish()
        number += 1
        waited = foreground.save(take(engine), number, {"optimizer_step": number}, saved.append)
        began = time.perf_counter()
        place = folder / f"step-{number:06d}"
        reader = checkpoint.load(engine.deepspeed, place, engine.shards, engine.shapes)
        restored = time.perf_counter() - began
        began = time.perf_counter()
        reader.verify()
        verified = time.perf_counter() - began
        shutil.rmtree(place)
        shutil.rmtree(folder / f"step-{number - 1:06d}")
        if round_number == 0:
            note("first stall (ms), which takes the buffers", 1e3 * stall)
            continue
        size = saved[-1].manifest.bytes() / 1e9
        note("step (ms)", 1e3 * statistics.median(plain))
        note("step beside a write (ms)", 1e3 * statistics.median(beside))
        note("stall of a checkpoint (ms)", 1e3 * stall)
        note("write beside steps (GB/s)", size / saved[-2].written_s)
        note("stall without the thread (ms)", 1e3 * waited)
        note("write with the loop waiting (GB/s)", size / waited)
        note("restore, checked (GB/s)", size / restored)
        note("verify, SHA-256 (GB/s)", size / verified)
    note("copy to the host (GB/s)", size / (statistics.median(found["stall of a checkpoint (ms)"]) / 1e3))
    print(f"{parameters / 1e6:.0f} M parameters, {size:.2f} GB a checkpoint, ZeRO 1 float32, {threads} thread(s)")
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}, {rounds} rounds"
    )
    for name, values in found.items():
        print(f"| {name} | {statistics.median(values):.4g} ({min(values):.4g}-{max(values):.4g}) |")


def take(engine: TrainEngine) -> Any:
    return checkpoint.take(engine.deepspeed, (engine.mesh, engine.shards))


def one_step(engine: TrainEngine) -> float:
    """Seconds of an optimizer step on one row."""
    began = time.perf_counter()
    tokens = np.arange(8, 8 + TOKENS, dtype=np.int32)
    list(engine.step([[Encoded.of_tokens(tokens, np.ones(TOKENS, np.uint8))]], TOKENS))
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
