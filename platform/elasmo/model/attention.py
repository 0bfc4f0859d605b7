"""How decoder layers attend. Training attends causally in the batch; inference swaps in attention over a KV cache."""

from __future__ import annotations

from typing import Protocol

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
