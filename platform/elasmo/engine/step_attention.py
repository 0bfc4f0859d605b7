"""One step's attention: sequences that decode, together, and pieces of prompts, each over its own pages.

KV lives in pages and a block table says which (Kwon et al. 2023). Grouped queries are folded into the rows of a
matrix product, so no key or value is repeated for the heads that share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from elasmo.engine.contiguous_kv import ContiguousKV


@dataclass(frozen=True)
class Row:
    """Tokens `start` to `start + tokens` of a sequence; where they decode from, if not from pages."""

    table: Sequence[int]
    start: int
    tokens: int
    slot: int | None = None


class StepAttention:
    """Implements `elasmo.model.attention.Attention` for the tokens of all rows, one after the other, batch 1.

    Args:
        pages: [layers, 2, blocks, block_size, kv_heads, head_dim]; every row's keys and values are written there.
        contiguous: where rows with a slot are read from.
        rows: those with a slot first.
    """

    def __init__(self, pages: Tensor, contiguous: ContiguousKV, rows: Sequence[Row]) -> None:
        self._pages = pages
        self._contiguous = contiguous
        device, size = pages.device, pages.shape[3]
        places = [(row.table[at // size], at % size) for row in rows for at in range(row.start, row.start + row.tokens)]
        self._page, self._place = torch.tensor(places, device=device).T
        decoding = [row for row in rows if row.slot is not None]
        self._chunks = [
            (row, torch.tensor(row.table[: -(-(row.start + row.tokens) // size)], device=device))
            for row in rows[len(decoding) :]
        ]
        self._decoding = len(decoding)
        if decoding:
            slots = [row.slot for row in decoding]
            self._first = slots == list(range(len(slots)))
            self._slots = torch.tensor(slots, device=device)
            self._starts = torch.tensor([row.start for row in decoding], device=device)
            reach = torch.arange(int(self._starts.max()) + 1, device=device)
            beyond = reach[None, :] > self._starts[:, None]
            bias = torch.zeros(beyond.shape, dtype=pages.dtype, device=device).masked_fill_(beyond, -torch.inf)
            self._bias = bias[:, None, None, :]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self._pages[layer]
        keys[self._page, self._place] = key[0].transpose(0, 1)
        values[self._page, self._place] = value[0].transpose(0, 1)
        parts, at = [], self._decoding
        if self._decoding:
            parts.append(self._decode(layer, *(x[0, :, :at].transpose(0, 1) for x in (query, key, value))))
        for row, table in self._chunks:
            end = at + row.tokens
            fresh = (query[:, :, at:end], key[:, :, at:end], value[:, :, at:end])
            parts.append(self._prefill(row, table, keys, values, *fresh))
            at = end
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def _decode(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[rows, heads, head_dim] of each row's one token -> [1, heads, rows, head_dim]."""
        keys, values = self._contiguous.layer(layer)
        keys[self._slots, :, self._starts] = key
        values[self._slots, :, self._starts] = value
        reach = self._bias.shape[3]
        if self._first:
            keys, values = keys[: self._decoding, :, :reach], values[: self._decoding, :, :reach]
        else:
            keys, values = keys[self._slots, :, :reach], values[self._slots, :, :reach]
        # A matrix product a group and no fused kernel: for one query a sequence it is as fast in float32 and several
        # times faster in bfloat16 (benchmarks/engine.md).
        folded = query.unflatten(1, (keys.shape[1], -1)) * query.shape[-1] ** -0.5
        scores = (folded @ keys.transpose(2, 3) + self._bias).softmax(dim=-1, dtype=torch.float32)
        mixed: Tensor = (scores.to(values.dtype) @ values).flatten(1, 2).transpose(0, 1)[None]
        return mixed

    def _prefill(
        self, row: Row, table: Tensor, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        if row.start == 0:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        end = row.start + row.tokens
        key, value = (x[table].flatten(0, 1)[:end].transpose(0, 1)[None] for x in (keys, values))
        mask = torch.ones(row.tokens, end, dtype=torch.bool, device=query.device).tril(row.start)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
