"""Elasmo's pipeline trains as DeepSpeed's own `PipelineModule` does, from the same weights on the same micro-batches.

Both run on two stages under ZeRO 1 with torch's AdamW and clipping. What they share is the model's modules and
DeepSpeed's ZeRO; schedule, transport, loss scaling, tied gradients, the norm over stages and attention over a packed
row are each one's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import deepspeed
import pytest
import torch
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import Tensor, nn

from elasmo.config import ModelConfig
from elasmo.model.batch import IGNORED, pack
from elasmo.model.multimodal import MultimodalDecoder
from elasmo.model.rope import rotary
from elasmo.parallel.layout import Layout
from elasmo.train import deepspeed_adapter
from elasmo.train.engine import TrainEngine
from tests.gloo import run_ranks
from tests.parallel import layout_run, oracle

RELATIVE = 1e-5
WIDTH = 64
"""Of every packed row: `PipelineModule` sends activations of one shape."""

Hidden = tuple[Tensor, Tensor]
"""Hidden states [1, seq, hidden], and each token's position in its sample [1, seq]."""


@dataclass(frozen=True)
class Run:
    """Of each step the loss and the gradient norm before clipping."""

    losses: list[float]
    norms: list[float]


def make_model(tied: bool) -> MultimodalDecoder:
    decoder = oracle.MODELS["dense"].decoder.model_copy(update={"tie_embeddings": tied})
    model = MultimodalDecoder(ModelConfig(decoder=decoder, vision=None, audio=None, table=None), oracle.VOCAB)
    model.init_weights(3)
    return model


def elasmo_run(tied: bool) -> Run:
    engine = TrainEngine(make_model(tied), oracle.TRAIN, Layout(pp=2), oracle.SLOTS)
    run = Run([], [])
    for step in range(oracle.STEPS):
        run.losses.append(layout_run.run_step(engine, "dense", step))
        norm = deepspeed_adapter.grad_norm(engine.deepspeed)
        assert norm is not None
        run.norms.append(norm)
    engine.deepspeed.destroy()
    return run


class Embed(nn.Module):
    """First layer, from (tokens, positions)."""

    def __init__(self, model: MultimodalDecoder) -> None:
        super().__init__()
        self.embed_tokens = model.embed_tokens

    def forward(self, row: tuple[Tensor, Tensor]) -> Hidden:
        tokens, positions = row
        return self.embed_tokens(tokens), positions


class Layer(nn.Module):
    """A decoder layer, which attends by positions alone: back to the token where they begin again."""

    def __init__(self, model: MultimodalDecoder, number: int) -> None:
        super().__init__()
        self.config = model.config.decoder
        self.layer = model.decoder.layers[number]

    def forward(self, state: Hidden) -> Hidden:
        x, positions = state
        cos, sin = rotary(positions, self.config.head_size, self.config.rope_theta, self.config.rope_scaling)
        return self.layer(x, cos, sin, ByPosition(positions)), positions


class ByPosition:
    def __init__(self, positions: Tensor) -> None:
        at = torch.arange(positions.shape[1])
        self.mask = (at[None] <= at[:, None]) & (at[None] >= (at - positions[0])[:, None])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask, enable_gqa=True)


class Head(nn.Module):
    """Last norm, and logits [1, seq, vocab] from an untied head."""

    def __init__(self, model: MultimodalDecoder) -> None:
        super().__init__()
        self.norm = model.decoder.norm
        self.lm_head = model.lm_head

    def forward(self, state: Hidden) -> Tensor:
        hidden: Tensor = self.norm(state[0])
        return hidden if self.lm_head is None else self.lm_head(hidden)


def score(embed: Embed, hidden: Tensor) -> Tensor:
    """What a tied embedding does at the last stage."""
    return F.linear(hidden, embed.embed_tokens.weight)


def loss(logits: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    """Sum over a micro-batch's targets; with the weight, DeepSpeed's mean over micro-batches is one over tokens."""
    labels, weight = target
    return F.cross_entropy(logits[0], labels[0], ignore_index=IGNORED, reduction="sum") * weight


def micro_batches(step: int) -> Iterator[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    slots = oracle.slots("dense", step)
    weight = torch.tensor(len(slots) / oracle.targets(slots))
    for samples in slots:
        batch = pack(samples, budget=WIDTH)
        yield (batch.tokens, batch.positions), (batch.labels, weight)


def layer_specs(tied: bool) -> list[LayerSpec]:
    model = make_model(tied)
    layers = [LayerSpec(Layer, model, number) for number in range(oracle.DECODER.layers)]
    if not tied:
        return [LayerSpec(Embed, model), *layers, LayerSpec(Head, model)]
    embed = partial(TiedLayerSpec, "embeddings", Embed, model, tied_weight_attr="embed_tokens.weight")
    return [embed(), *layers, LayerSpec(Head, model), embed(forward_fn=score)]


def deepspeed_run(tied: bool, clip: float) -> Run:
    cut = PipelineModule(layer_specs(tied), num_stages=2, loss_fn=loss, partition_method="uniform")
    train = oracle.TRAIN
    engine, *_ = deepspeed.initialize(
        model=cut,
        optimizer=torch.optim.AdamW(oracle.groups(cut), lr=train.lr, betas=train.betas, eps=train.eps),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": oracle.SLOTS,
            "gradient_clipping": clip,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10**9,
        },
        dist_init_required=False,
    )
    run = Run([], [])
    for step in range(oracle.STEPS):
        run.losses.append(float(engine.train_batch(micro_batches(step))))
        run.norms.append(float(engine.get_global_grad_norm()))
    engine.destroy()
    return run


def runs(rank: int, world: int, tied: bool) -> tuple[Run, Run, Run]:
    """Elasmo's, DeepSpeed's, and DeepSpeed's without clipping."""
    deepspeed_adapter.init_distributed(60)
    return elasmo_run(tied), deepspeed_run(tied, oracle.TRAIN.grad_clip), deepspeed_run(tied, 0.0)


@pytest.mark.parametrize("tied", [False, True], ids=["own_head", "tied_embeddings"])
def test_losses_and_gradient_norms_equal_those_of_deepspeeds_pipeline(tied: bool) -> None:
    for ours, theirs, unclipped in run_ranks(2, runs, tied):
        assert ours.losses == pytest.approx(theirs.losses, rel=RELATIVE)
        assert ours.norms == pytest.approx(theirs.norms, rel=RELATIVE)
        assert min(ours.norms) > oracle.TRAIN.grad_clip  # every step was clipped, and it shows in what follows
        assert unclipped.losses[0] == pytest.approx(ours.losses[0], rel=RELATIVE)
        assert abs(unclipped.losses[-1] / ours.losses[-1] - 1) > 100 * RELATIVE
