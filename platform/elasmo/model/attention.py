"""How decoder layers attend. Training attends causally within samples; inference swaps in attention over a KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Attention(Protocol):
    """One step's attention for all layers.

    `attend` gets rotated queries [batch, heads, seq, head_dim] and keys and values [batch, kv_heads, seq, head_dim] of
    one layer, and returns [batch, heads, seq, head_dim].
    """

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor: ...


class CausalAttention:
    """Every position attends to itself and those before it; with padding on the right no real token sees a pad."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


class PackedAttention:
    """Samples stand one after the other in one row; each attends causally within itself and sees no other.

    Args:
        lengths: tokens of each sample; together they are the sequence.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = [length for length in lengths if length]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = zip(*(x.split(self.lengths, dim=2) for x in (query, key, value)), strict=True)
        return torch.cat(
            [F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) for q, k, v in parts], dim=2
        )


class NaivePackedAttention:
    """The oracle of `PackedAttention`: the whole matrix of scores, masked to each sample's own lower triangle."""

    def __init__(self, lengths: Sequence[int]) -> None:
        sample = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        self.mask = (sample[:, None] == sample[None, :]).tril()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
        out: Tensor = scores.masked_fill(~self.mask, float("-inf")).softmax(dim=-1) @ value
        return out
