"""Causal attention within packed samples as matrix products over blocks of queries, the fastest on CPUs in bfloat16.

torch's CPU kernel converts bfloat16 around each of its small tiles; matrix products of a block run on the CPU's
bfloat16 units instead (`benchmarks/attention.md`). Three things keep it fast and its memory linear in the sequence:
samples of similar length are computed together, padded to the longest; the queries that share a key head are folded
into the rows of one product, so keys and values are never repeated; and the backward pass computes the probabilities
of a block again instead of keeping them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

ROWS = 128
"""Queries of a head in a block."""
TOKENS = 1024
"""Samples are computed together up to this many tokens, so that a block's scores stay in the processor's caches."""
WASTE = 1.5
"""Samples computed together differ in length by at most this factor."""


@torch.library.custom_op("elasmo::block_attention", mutates_args=())
def block_attention(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
    """Attention of samples that stand one after the other; one operator, so that recomputation can keep its result.

    Args:
        query: [1, heads, seq, head_dim].
        key, value: [1, kv_heads, seq, head_dim].
        lengths: tokens of each sample, at least 1; together they are `seq`.

    Returns:
        [1, heads, seq, head_dim].
    """
    out = _like(query)
    for group in _groups(tuple(lengths)):
        q, k, v = _take(query, group), _take(key, group), _take(value, group)
        folded = _Folded(q, k)
        result = torch.empty_like(folded.query)
        for first, last in _blocks(group.width):
            mixed = folded.probabilities(first, last) @ v.flatten(0, 1)[:, :last]
            result[:, :, :, first:last] = mixed.view(result[:, :, :, first:last].shape)
        _put(out, folded.unfold(result), group)
    return out


@torch.library.custom_op("elasmo::block_attention_backward", mutates_args=())
def block_attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value from that of the output."""
    d_query, d_key, d_value = _like(query), _like(key), _like(value)
    for group in _groups(tuple(lengths)):
        q, k, v = _take(query, group), _take(key, group), _take(value, group)
        folded, out = _Folded(q, k), _Folded(_take(gradient, group, pad=False), k)
        flat_v = v.flatten(0, 1)
        dq = torch.empty_like(folded.query)
        wide = torch.promote_types(query.dtype, torch.float32)  # the blocks' parts add up
        dk, dv = (torch.zeros(folded.key.shape, dtype=wide, device=query.device) for _ in range(2))
        for first, last in _blocks(group.width):
            p = folded.probabilities(first, last)
            d_out = out.rows(first, last)
            d_p = d_out @ flat_v[:, :last].transpose(1, 2)
            d_scores = torch.ops.aten._softmax_backward_data(d_p, p, -1, p.dtype)
            rows = (d_scores @ folded.key[:, :last]) * folded.scale
            dq[:, :, :, first:last] = rows.view(dq[:, :, :, first:last].shape)
            dk[:, :last] += (d_scores.transpose(1, 2) @ folded.rows(first, last)) * folded.scale
            dv[:, :last] += p.transpose(1, 2) @ d_out
        _put(d_query, folded.unfold(dq), group)
        _put(d_key, dk.to(key.dtype).view(k.shape), group)
        _put(d_value, dv.to(value.dtype).view(v.shape), group)
    return d_query, d_key, d_value


@block_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
    return _like(query)


@block_attention_backward.register_fake
def _(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    return _like(query), _like(key), _like(value)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.lengths = inputs[3]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return (*block_attention_backward(gradient, *ctx.saved_tensors, ctx.lengths), None)


block_attention.register_autograd(_backward, setup_context=_setup)


@dataclass(frozen=True)
class _Group:
    """Samples computed together.

    Attributes:
        width: tokens of the longest.
        index: int64 [samples * width], where each token stands in the sequence; a padded place names the sample's last
            token, so that no sample's numbers ever enter another's product.
        real: bool [samples * width], false at padded places; None where there are none.
    """

    width: int
    index: Tensor
    real: Tensor | None


@lru_cache(maxsize=64)
def _groups(lengths: tuple[int, ...]) -> tuple[_Group, ...]:
    """Deals samples into groups, longest first; every layer of a step asks for the same."""
    starts = [0, *accumulate(lengths)]
    members: list[list[int]] = []
    for sample in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        width = lengths[members[-1][0]] if members else 0
        if width and width <= WASTE * lengths[sample] and (len(members[-1]) + 1) * width <= TOKENS:
            members[-1].append(sample)
        else:
            members.append([sample])
    return tuple(_group([(starts[i], lengths[i]) for i in chosen]) for chosen in members)


def _group(samples: Sequence[tuple[int, int]]) -> _Group:
    width = samples[0][1]
    starts, counts = (torch.tensor(column)[:, None] for column in zip(*samples, strict=True))
    reach = torch.arange(width)[None]
    real = reach < counts
    index = starts + torch.minimum(reach, counts - 1)
    return _Group(width, index.flatten(), None if bool(real.all()) else real.flatten())


def _blocks(width: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + ROWS, width)) for first in range(0, width, ROWS))


def _like(x: Tensor) -> Tensor:
    """Space with the layout in which the output projection reads tokens."""
    batch, heads, seq, size = x.shape
    out: Tensor = x.new_empty(batch, seq, heads, size).transpose(1, 2)
    return out


def _take(x: Tensor, group: _Group, pad: bool = True) -> Tensor:
    """[1, heads, seq, size] -> [heads, samples, width, size]; padded places repeat a token, or are zero."""
    taken = x[0].index_select(1, group.index)
    if not pad and group.real is not None:
        taken = taken.masked_fill(~group.real[None, :, None], 0.0)
    out: Tensor = taken.unflatten(1, (-1, group.width))
    return out


def _put(out: Tensor, values: Tensor, group: _Group) -> None:
    """Writes [heads, samples, width, size] to where `_take` read it, padded places left out."""
    flat, index = values.flatten(1, 2), group.index
    if group.real is not None:
        flat, index = flat[:, group.real], index[group.real]
    out[0].index_copy_(1, index, flat)


class _Folded:
    """Queries by key head: those of the heads that share one are rows of the same product."""

    def __init__(self, query: Tensor, key: Tensor) -> None:
        """`query` [heads, samples, width, size] and `key` [kv_heads, samples, width, size]."""
        self.scale = float(query.shape[3] ** -0.5)
        self.query = query.unflatten(0, (key.shape[0], -1)).transpose(1, 2)  # [kv_heads, samples, fold, width, size]
        self.key = key.flatten(0, 1)  # [kv_heads * samples, width, size]

    def rows(self, first: int, last: int) -> Tensor:
        """Queries [kv_heads * samples, fold * rows, size] of a block."""
        out: Tensor = self.query[:, :, :, first:last].flatten(2, 3).flatten(0, 1)
        return out

    def probabilities(self, first: int, last: int) -> Tensor:
        """[kv_heads * samples, fold * rows, last]; keys behind the block are no part of it."""
        bias = _causal(first, last, self.query.dtype, self.query.device).repeat(self.query.shape[2], 1)
        scores = torch.baddbmm(bias, self.rows(first, last), self.key[:, :last].transpose(1, 2), alpha=self.scale)
        return scores.softmax(dim=-1)

    def unfold(self, values: Tensor) -> Tensor:
        """[kv_heads, samples, fold, width, size] -> [heads, samples, width, size]."""
        return values.transpose(1, 2).flatten(0, 1)


def _causal(first: int, last: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((last - first, last), float("-inf"), dtype=dtype, device=device).triu(first + 1)
