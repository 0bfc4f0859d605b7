"""The comparison with the dense run notices a collective that is missing: each is taken out, and the run must differ.

Without these, a comparison could pass because what it compares is right by accident.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from elasmo.parallel import collectives
from elasmo.parallel.layout import Layout
from elasmo.parallel.mesh import Group
from elasmo.train import deepspeed_adapter
from tests.gloo import run_ranks
from tests.parallel import layout_run

NOTICED = 1e-3


def without_sum(x: Tensor, group: Group) -> Tensor:
    return x.contiguous().clone()


def without_turn(x: Tensor, group: Group, scatter_dim: int, gather_dim: int) -> Tensor:
    """Each rank keeps its own tokens' heads instead of getting the others'."""
    return torch.cat([x.chunk(group.size, dim=scatter_dim)[group.rank]] * group.size, dim=gather_dim)


def without_exchange(x: Tensor, group: Group, sent: list[int], received: list[int]) -> Tensor:
    """Rows stay where they are, cut or filled up to the number that was to come."""
    out = x.new_zeros((sum(received), *x.shape[1:]))
    kept = min(len(x), len(out))
    out[:kept] = x[:kept]
    return out


def without_gradient_sum(group: Group, gradient: Tensor) -> Tensor:
    return gradient


def remove(what: str) -> None:
    removed: dict[str, tuple[object, str, Callable[..., Tensor]]] = {
        "tensor-parallel all-reduce": (collectives, "_summed", without_sum),
        "ulysses all-to-all": (collectives, "_turned", without_turn),
        "expert and media exchange": (collectives, "_exchanged", without_exchange),
        "sum of partial gradients": (deepspeed_adapter, "_sum_over", without_gradient_sum),
    }
    module, attribute, replacement = removed[what]
    setattr(module, attribute, replacement)


def broken(rank: int, world: int, kind: str, layout: Layout, what: str) -> float:
    remove(what)
    return max(layout_run.distances(rank, world, kind, [layout])[0].values())


@pytest.mark.parametrize(
    ("what", "kind", "layout"),
    [
        ("tensor-parallel all-reduce", "dense", Layout(tp=2)),
        ("ulysses all-to-all", "dense", Layout(sp=2)),
        ("expert and media exchange", "moe", Layout(dp=2, ep=2)),
        ("expert and media exchange", "multimodal", Layout(tp=2)),
        ("sum of partial gradients", "dense", Layout(tp=2)),
        ("sum of partial gradients", "moe", Layout(dp=2, ep=2, zero_stage=2)),
        ("sum of partial gradients", "multimodal", Layout(tp=2, zero_stage=3)),
    ],
)
def test_a_missing_collective_is_noticed(what: str, kind: str, layout: Layout) -> None:
    assert max(run_ranks(layout.world, broken, kind, layout, what)) > NOTICED


def without_pipeline_sums(rank: int, world: int, kind: str, layout: Layout) -> dict[str, float]:
    plain = deepspeed_adapter.step_accumulated
    deepspeed_adapter.step_accumulated = lambda engine, mesh, shards: engine.step()
    try:
        return layout_run.distances(rank, world, kind, [layout])[0]
    finally:
        deepspeed_adapter.step_accumulated = plain


def test_tied_embeddings_and_encoders_of_a_pipeline_need_their_sums() -> None:
    ranks = run_ranks(2, without_pipeline_sums, "multimodal", Layout(pp=2))
    for tensor in ("embed_tokens.weight", "vision.patch.weight", "audio.conv1.weight"):
        assert max(worst.get(f"gradient {tensor}", 0.0) for worst in ranks) > NOTICED


def uncounted(rank: int, world: int, kind: str, layout: Layout) -> float:
    def mark_all(model: torch.nn.Module, mesh: object, shards: object) -> None:
        for parameter in model.parameters():
            parameter.model_parallel = True  # type: ignore[attr-defined]

    deepspeed_adapter._mark = mark_all
    return layout_run.distances(rank, world, kind, [layout])[0]["norm"]


def test_a_gradient_norm_that_counts_copies_twice_is_noticed() -> None:
    assert max(run_ranks(2, uncounted, "dense", Layout(tp=2))) > NOTICED
