"""Tiny models of every kind, batches for them, the dense single-process run, and how far a layout's run is from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import (
    AudioConfig,
    CrossAttentionConfig,
    DecoderConfig,
    LoraConfig,
    ModelConfig,
    MoEConfig,
    TableConfig,
    TrainConfig,
    VisionConfig,
)
from elasmo.model import lora
from elasmo.model.batch import pack
from elasmo.model.encoded import Encoded
from elasmo.model.moe import MoE
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.processor import TableField
from elasmo.model.tokenizer import AUDIO, IMAGE, TABLE
from elasmo.train.freeze import freeze

VOCAB = 101
"""A prime: no number of ranks divides it."""
SLOTS, STEPS = 4, 3
FIELDS = (TableField("age", "number", mean=3.0, std=2.0), TableField("city", "category", categories=("Oslo", "Rome")))

DECODER = DecoderConfig(hidden=32, layers=4, heads=4, kv_heads=4, ffn=54, max_seq=64, qkv_bias=True, qk_norm=True)
GROUPED = {"heads": 24, "kv_heads": 12, "head_dim": 8}
"""Grouped queries whose heads divide over 2, 3 and 4 ranks, unlike ffn and vocabulary."""
VISION = VisionConfig(image_size=4, patch=2, stem=4, hidden=16, layers=1, heads=2, ffn=24)
AUDIO_TOWER = AudioConfig(n_mels=8, hidden=16, layers=1, heads=2, ffn=24)
MODELS = {
    "dense": ModelConfig(
        decoder=DECODER.model_copy(update={"out_bias": True, "mlp_bias": True, "tie_embeddings": False, **GROUPED}),
        vision=None,
        audio=None,
        table=None,
    ),
    "moe": ModelConfig(
        decoder=DECODER.model_copy(update={"moe": MoEConfig(experts=4, top_k=2, ffn=20, aux_loss=0.1, every=2)}),
        vision=None,
        audio=None,
        table=None,
    ),
    "switch": ModelConfig(
        decoder=DECODER.model_copy(
            update={"moe": MoEConfig(experts=4, top_k=1, ffn=20, aux_loss=0.1, norm_topk=False, capacity_factor=0.8)}
        ),
        vision=None,
        audio=None,
        table=None,
    ),
    "multimodal": ModelConfig(
        decoder=DECODER.model_copy(update=GROUPED),
        vision=VISION,
        audio=AUDIO_TOWER,
        table=TableConfig(hidden=8, frequencies=2),
    ),
}
ATTENDING = MODELS["multimodal"].model_copy(
    update={"fusion": "cross_attention", "cross_attention": CrossAttentionConfig(latents=3, resampler_layers=1)}
)
"""Flamingo's fusion."""
TRAIN = TrainConfig(lr=0.005, weight_decay=0.1, grad_clip=0.3, eps=1e-3)
"""A large eps: with a small one Adam divides rounding errors of near-zero gradients by themselves."""


def make_model(kind: str) -> MultimodalDecoder:
    """A model of a kind; with `+lora` it has adapters that are not zero, and nothing else is trained."""
    config = ATTENDING if kind == "attending" else MODELS[kind.removesuffix("+lora")]
    model = MultimodalDecoder(config, VOCAB, FIELDS)
    model.init_weights(3)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(8)
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # biases and norms that differ, so that a lost one shows
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
            if name.endswith("_gate"):
                parameter.fill_(0.8)
        if kind.endswith("+lora"):
            lora.add_adapters(model, LoraConfig(rank=3, targets=("q_proj", "o_proj", "up_proj")), 0)
            freeze(model, lora.FROZEN)
            for name, parameter in model.named_parameters():
                if name.endswith(lora.B):
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def sample(kind: str, random: np.random.Generator) -> Encoded:
    """Text, in a multimodal model with up to three media in any order in it; text always follows a medium."""

    def text() -> list[int]:
        return [int(x) for x in random.integers(8, VOCAB, int(random.integers(2, 6)))]

    tokens, images, audio, cells = text(), [], [], 0  # type: list[int], list[Any], list[Any], int
    attending = kind == "attending"
    for medium in random.choice(3, size=int(random.integers(0, 4)) if kind == "multimodal" or attending else 0):
        if medium == 0:
            images.append(random.integers(0, 255, (4, 4, 1)).astype(np.uint8))
            tokens += [IMAGE] * (1 if attending else VISION.tokens)
        elif medium == 1:
            frames = int(random.integers(3, 11))
            audio.append(random.normal(size=(frames, 8)).astype(np.float16))
            tokens += [AUDIO] * (1 if attending else -(-frames // 4))
        elif not cells:
            cells = 2
            tokens += [TABLE] * cells
        tokens += text()
    array = np.array(tokens, np.int32)
    mask = ((array >= 8) & (random.random(len(array)) < 0.7)).astype(np.uint8)
    return Encoded(
        array,
        mask,
        np.stack(images) if images else Encoded.empty().images,
        tuple(audio),
        np.arange(cells, dtype=np.int16),
        np.array([0.5, 0.0][:cells], np.float32),
        np.array([0, 2][:cells], np.int16),
    )


def slots(kind: str, step: int) -> list[list[Encoded]]:
    """Samples of the step's micro-batches. Of a multimodal model's, slots 1 and 3 are text alone."""
    made = []
    for slot in range(SLOTS):
        random = np.random.default_rng([step, slot])
        made.append([sample("dense" if slot % 2 else kind, random) for _ in range(3)])
    return made


def targets(slots: list[list[Encoded]]) -> int:
    return sum(sample.costs().target for samples in slots for sample in samples)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": TRAIN.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


@dataclass
class DenseRun:
    """Per step: loss, norm before clipping, weights, and first moments, which are sums of clipped gradients."""

    losses: list[float]
    norms: list[float]
    moments: list[dict[str, Tensor]]
    weights: list[dict[str, Tensor]]


@lru_cache
def dense_run(kind: str, frozen: tuple[str, ...] = (), steps: int = STEPS) -> DenseRun:
    """The oracle: one process, plain torch, the load-balancing loss written out."""
    model = make_model(kind)
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(groups(model), lr=TRAIN.lr, betas=TRAIN.betas, eps=TRAIN.eps)
    run = DenseRun([], [], [], [])
    for step in range(steps):
        count, total = targets(slots(kind, step)), 0.0
        optimizer.zero_grad()
        for samples in slots(kind, step):
            batch = pack(samples)
            hidden = model.hidden(batch)
            wanted = batch.labels >= 0
            loss = F.cross_entropy(model.logits(hidden[wanted]), batch.labels[wanted], reduction="sum") / count
            total += float(loss.detach())
            for module in model.modules():
                if isinstance(module, MoE):
                    loss = loss + module.config.aux_loss * module.aux_loss / SLOTS
            loss.backward()
        run.losses.append(total)
        run.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), TRAIN.grad_clip)))
        optimizer.step()
        run.moments.append(
            {name: optimizer.state[p]["exp_avg"].clone() for name, p in model.named_parameters() if p.requires_grad}
        )
        run.weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return run
