"""Cuts are the best of all contiguous cuts, and layers cost what their matrices multiply."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elasmo.config import DecoderConfig, MoEConfig
from elasmo.model.decoder import Decoder
from elasmo.model.moe import MoE
from elasmo.parallel.stages import head_cost, layer_costs, split

DENSE = DecoderConfig(hidden=24, layers=3, heads=6, kv_heads=2, head_dim=10, ffn=54, qkv_bias=True, qk_norm=True)
MOE = MoEConfig(experts=5, top_k=2, ffn=20, every=2)

# Integers and halves add up exactly in any order, so that equally good cuts are equal and ties are ties.
COSTS = st.integers(0, 20).map(lambda cost: cost / 2)


def cuts(layers: int, stages: int) -> list[list[range]]:
    """Every contiguous cut into stages of at least one layer."""
    borders = [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]
    return [[range(start, stop) for start, stop in pairwise(border)] for border in borders]


def slowest(cut: list[range], costs: list[float], first: float, last: float) -> float:
    loads = [sum(costs[layer] for layer in stage) for stage in cut]
    loads[0] += first
    loads[-1] += last
    return max(loads)


@given(st.lists(COSTS, min_size=1, max_size=8), st.data(), COSTS, COSTS)
def test_a_split_is_the_best_of_all_contiguous_cuts(
    costs: list[float], data: st.DataObject, first: float, last: float
) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    found = split(costs, stages, first, last)
    assert len(found) == stages and all(found)
    assert [layer for stage in found for layer in stage] == list(range(len(costs)))
    best = min(slowest(cut, costs, first, last) for cut in cuts(len(costs), stages))
    assert slowest(found, costs, first, last) == best


@given(st.integers(1, 9), st.data())
def test_equal_layers_make_stages_of_nearly_equal_length(layers: int, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, layers))
    assert max(len(stage) for stage in split([1.0] * layers, stages)) == -(-layers // stages)


@pytest.mark.parametrize(
    ("costs", "stages", "first", "last", "expected"),
    [
        ([1, 1, 1, 1], 2, 0, 0, [range(0, 2), range(2, 4)]),
        ([1, 1, 1, 1], 2, 0, 2, [range(0, 3), range(3, 4)]),  # the head stands for two layers
        ([1, 1, 1, 1], 2, 2, 0, [range(0, 1), range(1, 4)]),
        ([5, 1, 1, 1], 2, 0, 0, [range(0, 1), range(1, 4)]),
        ([1, 1, 1, 1, 1], 2, 0, 0, [range(0, 3), range(3, 5)]),  # as good as (2, 3): the longer stage comes first
        ([9, 1, 1, 1, 1], 3, 0, 0, [range(0, 1), range(1, 3), range(3, 5)]),  # no (1, 3, 1), as slow as the nine may be
        ([1, 1, 9], 2, 0, 0, [range(0, 2), range(2, 3)]),
        ([1, 1, 1], 1, 4, 5, [range(0, 3)]),
        ([7], 1, 0, 0, [range(0, 1)]),
    ],
)
def test_known_cuts(costs: list[float], stages: int, first: float, last: float, expected: list[range]) -> None:
    assert split(costs, stages, first, last) == expected


@given(st.lists(COSTS, min_size=1, max_size=7), st.data())
def test_of_equally_good_cuts_early_stages_are_longer_and_the_rest_is_cut_as_well_as_it_can_be(
    costs: list[float], data: st.DataObject
) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    first, last = data.draw(COSTS), data.draw(COSTS)

    def preference(cut: list[range]) -> list[tuple[float, int]]:
        """For each stage, the slowest from it on, then its length."""
        extra = [first] + [0.0] * (stages - 1)
        return [(slowest(cut[at:], costs, extra[at], last), -len(cut[at])) for at in range(stages)]

    assert split(costs, stages, first, last) == min(cuts(len(costs), stages), key=preference)


@pytest.mark.parametrize(("layers", "stages"), [(0, 1), (1, 2), (3, 4)])
def test_more_stages_than_layers_are_refused(layers: int, stages: int) -> None:
    with pytest.raises(ValueError, match=rf"^{layers} layers do not fill {stages} stages\.$"):
        split([1.0] * layers, stages)


@pytest.mark.parametrize("moe", [None, MOE, MOE.model_copy(update={"every": 1, "top_k": 1})])
def test_a_layer_costs_the_elements_of_the_matrices_that_a_token_passes(moe: MoEConfig | None) -> None:
    config = DENSE.model_copy(update={"moe": moe})
    costs = layer_costs(config)
    for layer, cost in zip(Decoder(config).layers, costs, strict=True):
        expected = 0.0
        for name, parameter in layer.named_parameters():
            if parameter.ndim == 3:  # a stack of experts, of which a token takes the top k
                assert isinstance(layer.mlp, MoE) and moe is not None and len(parameter) == moe.experts
                expected += parameter.numel() * moe.top_k / moe.experts
            elif parameter.ndim == 2 and not name.endswith("bias"):
                expected += parameter.numel()
        assert cost == expected > 0
    assert len(set(costs)) == (2 if moe is MOE else 1)


def test_the_head_costs_its_matrix_at_the_targets() -> None:
    head = nn.Linear(DENSE.hidden, 101, bias=False)
    assert head_cost(DENSE, 101) == head.weight.numel()
    assert head_cost(DENSE, 101, target_share=0.25) == head.weight.numel() / 4
