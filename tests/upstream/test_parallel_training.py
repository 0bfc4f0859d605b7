"""Faults of other systems' parallel training, as they would show here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from elasmo.model.batch import pack
from elasmo.model.encoded import Encoded
from elasmo.parallel.forward import ParallelModel
from elasmo.parallel.layout import Layout
from elasmo.parallel.mesh import make_mesh
from elasmo.parallel.parallelize import parallelize
from elasmo.train import deepspeed_adapter
from tests.gloo import run_ranks
from tests.parallel import layout_run, oracle

UNEVEN = ([0], [1, 2], [3, 4, 5, 6, 7])
"""Samples of each rank: their target tokens differ several times over."""


def samples() -> list[Encoded]:
    return [sample for step in range(3) for slot in oracle.slots("dense", step) for sample in slot][:8]


def share_of_gradient(rank: int, world: int) -> tuple[float, dict[str, NDArray[np.float64]]]:
    """Loss and gradients in float64 of all ranks' samples together, each rank's sum over the global token count."""
    mesh = make_mesh(Layout(dp=world))
    model = oracle.make_model("dense").double()
    shards = parallelize(model, mesh, [range(oracle.DECODER.layers)])
    mine = [samples()[i] for i in UNEVEN[rank]]
    count = sum(sample.costs().target for sample in samples())
    losses = double_losses(ParallelModel(model, mesh, shards), mine)
    (losses.sum() / count).backward()
    total = losses.detach().sum() / count
    dist.all_reduce(total)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return float(total), {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}


def double_losses(model: ParallelModel, chosen: list[Encoded]) -> torch.Tensor:
    """Losses without the float32 in which the head scores."""
    batch = pack(chosen)
    media = model.encode(batch)
    x = model.run(model.trained.decoder.layers, model.begin(batch, media), batch, media)
    wanted = batch.labels >= 0
    logits = model.trained.logits(model.trained.decoder.norm(x)[wanted])
    return torch.nn.functional.cross_entropy(logits, batch.labels[wanted], reduction="none")


def test_every_target_token_counts_the_same_however_unevenly_ranks_hold_them() -> None:
    """torchtitan#2206: a mean of ranks' means gave tokens of ranks with few targets more weight."""
    dense = oracle.make_model("dense").double()
    whole = samples()
    batch = pack(whole)
    hidden = dense.decoder(dense.embed(batch.tokens, {}), batch.positions, batch.attention())
    wanted = batch.labels >= 0
    loss = torch.nn.functional.cross_entropy(dense.logits(hidden[wanted]), batch.labels[wanted])
    loss.backward()
    counts = [sum(whole[i].costs().target for i in part) for part in UNEVEN]
    assert max(counts) > 3 * min(counts)
    for total, gradients in run_ranks(3, share_of_gradient):
        assert total == pytest.approx(float(loss.detach()), rel=1e-12)
        for name, parameter in dense.named_parameters():
            assert parameter.grad is not None
            np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), rtol=1e-11, atol=1e-14, err_msg=name)


def close(kind: str, layout: Layout) -> None:
    for (worst,) in run_ranks(layout.world, layout_run.distances, kind, [layout], deadline_s=90):
        assert not {name: value for name, value in worst.items() if not value <= 1e-5}


def test_a_rank_with_text_alone_does_not_hang_a_sharded_vision_tower() -> None:
    """torchtitan#4777: text-only micro-batches on some ranks left the others waiting. Slots 1 and 3 are text alone."""
    assert not any(sample.images.size for sample in oracle.slots("multimodal", 0)[1])
    assert any(sample.images.size for sample in oracle.slots("multimodal", 0)[0])
    close("multimodal", Layout(dp=4, zero_stage=3))


def test_a_pipeline_with_sequence_parallel_stages_is_not_noise() -> None:
    """DeepSpeed#4196: pipeline and sequence parallelism together trained on noise."""
    close("multimodal", Layout(pp=2, sp=2))


def test_encoders_are_data_parallel_over_the_pipeline_of_the_decoder() -> None:
    """Megatron-LM#1375: encoders on four data-parallel ranks before a decoder of two by two pipeline stages."""
    close("multimodal", Layout(dp=2, pp=2))


def rows_of_changing_length(rank: int, world: int) -> list[int]:
    deepspeed_adapter.init_distributed(60)
    engine = layout_run.start("dense", Layout(pp=2))
    assert engine.pipeline is not None
    lengths = []
    for count in (2, 9, 4):  # samples a slot: longer than the first step's, then shorter again
        slots = [oracle.slots("dense", slot)[0] * count for slot in range(oracle.SLOTS)]
        tokens = sum(sample.costs().target for slot in slots for sample in slot)
        outputs = [output for output in engine.step(slots, tokens) if output is not None]
        lengths.append(max((output.batch.tokens.shape[1] for output in outputs), default=0))
        if engine.pipeline.has_last:
            targets = sum(int((output.losses > 0).sum()) for output in outputs)
            assert targets == tokens  # no target was cut off
    return lengths


def test_activations_follow_the_length_of_each_step() -> None:
    """DeepSpeed#3195: a pipeline cut later, longer batches to the shape of the first one; pytorch#159942: stages of
    `torch.distributed.pipelining` are made for one shape."""
    _, (first, second, third) = run_ranks(2, rows_of_changing_length)
    assert first < third < second
