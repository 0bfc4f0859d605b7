"""Attention over a paged KV cache (Kwon et al. 2023): keys and values live in pages, a block table says which."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class CapturingAttention:
    """Causal attention over a prompt that keeps every layer's keys and values: what prefill returns."""

    def __init__(self) -> None:
        self.layers: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # [1, kv_heads, tokens, head_dim] each -> [2, tokens, kv_heads, head_dim]
        self.layers.append(torch.stack([key[0], value[0]]).transpose(1, 2))
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


class PagedAttention:
    """One decoding step: each sequence's new token attends to its own pages.

    Args:
        pages: [layers, 2, blocks, block_size, kv_heads, head_dim].
        tables: int64 [batch, most pages of a sequence], padded with any valid page.
        lengths: int64 [batch], tokens in the cache before this step.
    """

    def __init__(self, pages: Tensor, tables: Tensor, lengths: Tensor) -> None:
        self.pages = pages
        self.tables = tables
        self.lengths = lengths
        block_size = pages.shape[3]
        self._page = tables.gather(1, (lengths // block_size)[:, None])[:, 0]
        self._place = lengths % block_size
        reach = torch.arange(tables.shape[1] * block_size, device=lengths.device)
        self._mask = (reach[None, :] <= lengths[:, None])[:, None, None, :]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self.pages[layer]
        keys[self._page, self._place] = key[:, :, 0]
        values[self._page, self._place] = value[:, :, 0]
        return F.scaled_dot_product_attention(
            query, self._gather(keys), self._gather(values), attn_mask=self._mask, enable_gqa=True
        )

    def _gather(self, pages: Tensor) -> Tensor:
        """[blocks, block_size, kv_heads, head_dim] -> [batch, kv_heads, reach, head_dim]."""
        return pages[self.tables].flatten(1, 2).transpose(1, 2)
