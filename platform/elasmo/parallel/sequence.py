"""Ulysses sequence parallelism (Jacobs et al. 2023): a rank holds some tokens, and in attention some heads."""

from __future__ import annotations

from torch import Tensor

from elasmo.model.attention import Attention
from elasmo.parallel.collectives import all_to_all, exclusive_sum, reduce_from
from elasmo.parallel.mesh import Group


class UlyssesAttention:
    """Turns shards of tokens into shards of heads around another attention, which then sees all tokens."""

    def __init__(self, inner: Attention, group: Group) -> None:
        self.inner = inner
        self.group = group

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[batch, heads, seq / ranks, head_dim] -> the same shape."""
        whole = (all_to_all(x, self.group, scatter_dim=1, gather_dim=2) for x in (query, key, value))
        return all_to_all(self.inner.attend(layer, *whole), self.group, scatter_dim=2, gather_dim=1)


class TokensOverRanks:
    """Counts of tokens that are spread over a group in sequence order; see `elasmo.model.moe.TokenShards`."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def total(self, counts: Tensor) -> Tensor:
        return reduce_from(counts, self.group)

    def before(self, counts: Tensor) -> Tensor:
        return exclusive_sum(counts, self.group)
