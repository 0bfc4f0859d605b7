"""Where a pipeline is cut: contiguous decoder layers a stage, so that the slowest stage is as fast as possible."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from elasmo.config import CrossAttentionConfig, DecoderConfig


def layer_costs(config: DecoderConfig, cross_attention: CrossAttentionConfig | None = None) -> list[float]:
    """Multiply-adds a token of each layer's matrices; attention over the context, equal in all layers, is left out.

    Args:
        cross_attention: blocks in front of some layers, when the model has them.
    """
    width = config.head_size * (2 * config.heads + 2 * config.kv_heads)
    costs = []
    for layer in range(config.layers):
        moe = config.moe if config.moe is not None and config.moe.has_experts(layer) else None
        ffn = config.ffn if moe is None else moe.top_k * moe.ffn
        router = 0 if moe is None else moe.experts
        cost = config.hidden * (width + 3 * ffn + router)
        if cross_attention is not None and cross_attention.has_block(layer):
            # Of queries and outputs; keys and values are of latents, which are few.
            cost += config.hidden * (2 * config.hidden + 3 * (cross_attention.ffn or config.ffn))
        costs.append(float(cost))
    return costs


def head_cost(config: DecoderConfig, vocab_size: int, target_share: float = 1.0) -> float:
    """Multiply-adds a token of the output head, which runs at targets only."""
    return config.hidden * vocab_size * target_share


def split(costs: Sequence[float], stages: int, first: float = 0.0, last: float = 0.0) -> list[range]:
    """Cuts layers into contiguous stages of at least one layer, with the smallest possible largest stage.

    Of equally good cuts the one with the longest first stage is taken, and what follows it is cut by the same rule.

    Args:
        costs: of each layer, measured or estimated, in any one unit.
        first, last: what the first and the last stage have to do besides their layers.

    Raises:
        ValueError: there are fewer layers than stages.
    """
    if stages > len(costs):
        raise ValueError(f"{len(costs)} layers do not fill {stages} stages.")

    @cache
    def best(start: int, left: int) -> tuple[float, tuple[int, ...]]:
        """(largest stage, ends) of layers from `start` in `left` stages."""
        extra = first if left == stages else 0.0
        if left == 1:
            return extra + sum(costs[start:]) + last, (len(costs),)
        found: tuple[float, tuple[int, ...]] | None = None
        for stop in range(len(costs) - left + 1, start, -1):
            largest, ends = best(stop, left - 1)
            largest = max(largest, extra + sum(costs[start:stop]))
            if found is None or largest < found[0]:
                found = largest, (stop, *ends)
        assert found is not None  # a stage count within the layers leaves at least one cut
        return found

    ends = best(0, stages)[1]
    return [range(start, stop) for start, stop in zip((0, *ends[:-1]), ends, strict=True)]
