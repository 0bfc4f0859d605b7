"""Training throughput of one process against transformers' Trainer and a plain PyTorch loop.

    pip install accelerate && python benchmarks/train.py --rounds 3

Prints the tables of train.md. All three train the same LLaVA (made on the spot) in bfloat16 with AdamW and clipping, on
the same global batches. The peers pad each micro-batch to its longest sample, as their collators do, under autocast
with float32 weights; Elasmo packs samples into a row and keeps bfloat16 weights with float32 masters in DeepSpeed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from elasmo.config import ModelConfig, TrainConfig
from elasmo.model import published
from elasmo.model.encoded import Encoded
from elasmo.model.hugging_face import import_model
from elasmo.parallel.layout import Layout
from elasmo.train import deepspeed_adapter
from elasmo.train.engine import TrainEngine
from elasmo.train.host_memory import keep_freed_memory

IMAGE_TOKEN, VOCAB = 7999, 8000
PATCHES = 64
MICRO_BATCH, SLOTS, STEPS = 8, 2, 2
LR, CLIP = 1e-4, 1.0


def make_llava(folder: Path) -> None:
    """About a hundred million parameters with random weights."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(0)
    vision = CLIPVisionConfig(
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=6,
        image_size=64,
        patch_size=8,
        projection_dim=384,
    )
    text = LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        vocab_size=VOCAB,
        max_position_embeddings=1024,
    )
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN, vision_feature_layer=-1)
    LlavaForConditionalGeneration(config).save_pretrained(folder)


def samples(workload: str, step: int) -> list[Encoded]:
    """A global batch: `ragged` has 20 to 400 tokens of text and none to three images, `fixed` 256 tokens of text."""
    random = np.random.default_rng([step, 7])
    made = []
    for _ in range(MICRO_BATCH * SLOTS):
        images = int(random.integers(0, 4)) if workload == "ragged" else 0
        length = int(np.exp(random.uniform(np.log(20), np.log(400)))) if workload == "ragged" else 256
        tokens = [*[IMAGE_TOKEN] * (PATCHES * images), *random.integers(3, IMAGE_TOKEN, length)]
        array = np.array(tokens, np.int32)
        mask = (array != IMAGE_TOKEN).astype(np.uint8)
        bare = Encoded.of_tokens(array, mask)
        pixels = random.integers(0, 256, (images, 64, 64, 3)).astype(np.uint8)
        made.append(Encoded(**{**vars(bare), "images": pixels}) if images else bare)
    return made


def useful_flops(config: ModelConfig, batch: Sequence[Encoded]) -> float:
    """Multiply-adds times two of forward and backward over real tokens: 6 a weight and token, and causal attention."""
    decoder, vision = config.decoder, config.vision
    assert vision is not None
    width = decoder.head_size * (2 * decoder.heads + 2 * decoder.kv_heads)
    layer = decoder.hidden * (width + 3 * decoder.ffn)
    total = 0.0
    for sample in batch:
        count = len(sample.tokens)
        targets = sample.costs().target
        total += 6.0 * count * decoder.layers * layer + 6.0 * targets * decoder.hidden * VOCAB
        total += 6.0 * decoder.layers * count * count * decoder.heads * decoder.head_size  # causal: half of 12
        patches = vision.tokens + 1
        tower = vision.hidden * (4 * vision.hidden + 2 * vision.ffn)
        per_image = 6.0 * patches * vision.layers * tower + 12.0 * vision.layers * patches**2 * vision.hidden
        per_image += 6.0 * vision.tokens * (vision.hidden * decoder.hidden + decoder.hidden**2)
        total += len(sample.images) * per_image
    return total


class Elasmo:
    """The training path of `elasmo train` on one rank, without Ray Data in front of it."""

    name = "Elasmo"

    def __init__(self, folder: Path) -> None:
        deepspeed_adapter.init_distributed(60)
        model = published.load(folder / "ours").model.train()
        train = TrainConfig(lr=LR, grad_clip=CLIP, dtype="bfloat16", micro_batch=MICRO_BATCH, weight_decay=0.0)
        self.config = model.config
        self.engine = TrainEngine(model, train, Layout(dp=1, zero_stage=1), SLOTS)

    def step(self, batch: Sequence[Encoded]) -> float:
        slots = [batch[i * MICRO_BATCH : (i + 1) * MICRO_BATCH] for i in range(SLOTS)]
        count = sum(sample.costs().target for sample in batch)
        outputs = list(self.engine.step(slots, count))
        return sum(float(output.losses.sum()) for output in outputs if output is not None) / count


def padded(batch: Sequence[Encoded]) -> dict[str, Tensor]:
    """What a collator of transformers gives: right-padded ids, mask, labels, pixels."""
    longest = max(len(sample.tokens) for sample in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.int64)
    labels = torch.full((len(batch), longest), -100)
    mask = torch.zeros(len(batch), longest, dtype=torch.int64)
    for row, sample in enumerate(batch):
        values = torch.from_numpy(sample.tokens.astype(np.int64))
        ids[row, : len(values)] = values
        labels[row, : len(values)] = torch.where(values == IMAGE_TOKEN, -100, values)
        mask[row, : len(values)] = 1
    given = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    images = [torch.from_numpy(image) for sample in batch for image in sample.images]
    if images:
        given["pixel_values"] = (torch.stack(images).permute(0, 3, 1, 2).float() / 255 - 0.45) / 0.27
    return given


def their_model(folder: Path) -> Any:
    from transformers import LlavaForConditionalGeneration

    return LlavaForConditionalGeneration.from_pretrained(folder / "hf", dtype=torch.float32).train()


class PlainLoop:
    """transformers' model in a hand-written loop: autocast, AdamW, clipping, gradient accumulation."""

    name = "plain PyTorch loop"

    def __init__(self, folder: Path) -> None:
        self.model = their_model(folder)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=0.0)

    def step(self, batch: Sequence[Encoded]) -> float:
        count = sum(sample.costs().target for sample in batch)
        total = 0.0
        for i in range(SLOTS):
            given = padded(batch[i * MICRO_BATCH : (i + 1) * MICRO_BATCH])
            labels = given.pop("labels")
            with torch.autocast("cpu", torch.bfloat16):
                logits = self.model(**given).logits
            wanted = labels[:, 1:] != -100
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1][wanted].float(), labels[:, 1:][wanted], reduction="sum"
            )
            (loss / count).backward()
            total += float(loss.detach()) / count
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total


class HuggingFaceTrainer:
    """transformers' Trainer on Accelerate, with bf16 and gradient accumulation; one call trains one global batch."""

    name = "transformers Trainer"

    def __init__(self, folder: Path) -> None:
        from transformers import Trainer, TrainingArguments

        self.data: list[Encoded] = []
        arguments = TrainingArguments(
            output_dir=str(folder / "trainer"),
            per_device_train_batch_size=MICRO_BATCH,
            gradient_accumulation_steps=SLOTS,
            learning_rate=LR,
            max_grad_norm=CLIP,
            lr_scheduler_type="constant",
            bf16=True,
            use_cpu=True,
            max_steps=1,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        self.trainer = Trainer(
            model=their_model(folder),
            args=arguments,
            train_dataset=self.data,
            data_collator=padded,
        )
        # In the given order: Trainer shuffles by default.
        self.trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(self.data)

    def step(self, batch: Sequence[Encoded]) -> float:
        self.data[:] = batch
        return float(self.trainer.train().training_loss)


def gemm_peak(dtype: torch.dtype, threads: int) -> float:
    """FLOP/s of the fastest of some square products: what this machine's matrix units give at best."""
    best = 0.0
    for size in (1024, 2048, 4096):
        a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
        for _ in range(4):
            started = time.perf_counter()
            torch.mm(a, b)
            best = max(best, 2.0 * size**3 / (time.perf_counter() - started))
    return best


def measure(rounds: int, threads: int, log: Callable[[str], None] = print) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    keep_freed_memory()  # as training workers do; the peers, in the same process, have it too
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["LOCAL_RANK"] = "0"  # what DeepSpeed asks of a launcher
        dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=0, world_size=1)
        make_llava(folder / "hf")
        import_model(folder / "hf", folder / "ours")
        systems = [Elasmo(folder), PlainLoop(folder), HuggingFaceTrainer(folder)]
        config = systems[0].config
        parameters = sum(p.numel() for p in systems[1].model.parameters())
        peak = gemm_peak(torch.bfloat16, threads)
        log(f"{parameters / 1e6:.0f} M parameters, {threads} threads, bf16 GEMM peak {peak / 1e12:.2f} TFLOP/s\n")
        for workload in ("ragged", "fixed"):
            speeds: dict[str, list[float]] = {system.name: [] for system in systems}
            usage: dict[str, list[float]] = {system.name: [] for system in systems}
            losses: dict[str, float] = {}
            for turn in range(rounds + 1):
                batches = [samples(workload, turn * STEPS + i) for i in range(STEPS)]
                tokens = sum(len(sample.tokens) for batch in batches for sample in batch)
                flops = sum(useful_flops(config, batch) for batch in batches)
                for system in systems:
                    started = time.perf_counter()
                    found = [system.step(batch) for batch in batches]
                    seconds = time.perf_counter() - started
                    losses.setdefault(system.name, found[0])
                    if turn:  # the first round warms up
                        speeds[system.name].append(tokens / seconds)
                        usage[system.name].append(flops / seconds / peak)
            table(workload, speeds, usage, losses, log)


def table(
    workload: str,
    speeds: dict[str, list[float]],
    usage: dict[str, list[float]],
    losses: dict[str, float],
    log: Callable[[str], None],
) -> None:
    best = max(statistics.median(values) for name, values in speeds.items() if name != Elasmo.name)
    log(f"### {workload}\n\n| system | tokens/s (median, range) | MFU | against the best peer | first loss |")
    log("| --- | --- | --- | --- | --- |")
    for name, values in speeds.items():
        middle, mfu = statistics.median(values), statistics.median(usage[name])
        spread = f"{middle:,.0f} ({min(values):,.0f}-{max(values):,.0f})"
        log(f"| {name} | {spread} | {mfu:.1%} | {middle / best:.2f} | {losses[name]:.4f} |")
    log("")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    measure(arguments.rounds, arguments.threads)
