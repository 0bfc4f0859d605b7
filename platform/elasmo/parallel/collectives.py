"""Collectives with gradients: each says what its forward and its backward pass do (Megatron's f and g).

A group of one rank costs nothing. What is the same on all ranks of a group is called whole, what must be summed over
them is called partial, what each has a part of is called sharded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from elasmo.parallel.mesh import Group


def copy_to(x: Tensor, group: Group) -> Tensor:
    """Whole -> whole; its gradient, partial since each rank used it for its own shard, is summed."""
    return _apply(_Copy, x, group) if group.size > 1 else x


def reduce_from(x: Tensor, group: Group) -> Tensor:
    """Partial -> whole by summing; its gradient is whole already."""
    return _apply(_Reduce, x, group) if group.size > 1 else x


def gather(x: Tensor, group: Group, dim: int) -> Tensor:
    """Sharded evenly along `dim` -> whole; its gradient, partial, is summed and sharded."""
    return _apply(_Gather, x, group, dim) if group.size > 1 else x


def reduce_scatter(x: Tensor, group: Group, dim: int) -> Tensor:
    """Partial -> summed and sharded evenly along `dim`; its gradient is gathered."""
    return _apply(_ReduceScatter, x, group, dim) if group.size > 1 else x


def all_to_all(x: Tensor, group: Group, scatter_dim: int, gather_dim: int) -> Tensor:
    """Sharded evenly along `gather_dim` -> sharded evenly along `scatter_dim`."""
    return _apply(_AllToAll, x, group, scatter_dim, gather_dim) if group.size > 1 else x


def exchange_rows(x: Tensor, group: Group, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    """Rows [sum(sent), ...] to their ranks -> rows [sum(received), ...] from all ranks, in rank order."""
    return _apply(_ExchangeRows, x, group, tuple(sent), tuple(received)) if group.size > 1 else x


def gather_rows(x: Tensor, group: Group, counts: Sequence[int], counted: bool) -> Tensor:
    """Rows [counts[rank], ...] -> all rows [sum(counts), ...]; gradients of all ranks are summed for each row's owner.

    Args:
        counted: whether this rank's gradient enters the sum. Of ranks that use the result in the same way, and so have
            the same gradient, one says yes.
    """
    return _apply(_GatherRows, x, group, tuple(counts), counted) if group.size > 1 else x


def exclusive_sum(x: Tensor, group: Group) -> Tensor:
    """The sum of `x` over lower ranks; without gradients."""
    parts = [torch.empty_like(x) for _ in group.ranks]
    dist.all_gather(parts, x.contiguous(), group=group.handle)
    return torch.stack(parts)[: group.rank].sum(dim=0)


def _apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    out: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return out


def _summed(x: Tensor, group: Group) -> Tensor:
    total = x.contiguous().clone()
    dist.all_reduce(total, group=group.handle)
    return total


def _gathered(x: Tensor, group: Group, dim: int) -> Tensor:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in group.ranks]
    dist.all_gather(parts, x.contiguous(), group=group.handle)
    return torch.cat(parts, dim=dim)


def _summed_shard(x: Tensor, group: Group, dim: int) -> Tensor:
    if x.shape[dim] % group.size:
        raise ValueError(f"{x.shape[dim]} positions do not divide over {group.size} ranks; pad the row.")
    parts = [part.contiguous() for part in x.chunk(group.size, dim=dim)]
    out = torch.empty_like(parts[0])
    dist.reduce_scatter(out, parts, group=group.handle)
    return out


def _exchanged(x: Tensor, group: Group, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), list(received), list(sent), group=group.handle)
    return out


def _turned(x: Tensor, group: Group, scatter_dim: int, gather_dim: int) -> Tensor:
    parts = torch.stack(x.chunk(group.size, dim=scatter_dim)).contiguous()
    out = torch.empty_like(parts)
    dist.all_to_all_single(out, parts, group=group.handle)
    return torch.cat(tuple(out), dim=gather_dim)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _summed(gradients[0], ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return _gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _summed_shard(gradients[0], ctx.group, ctx.dim), None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return _summed_shard(x, group, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _gathered(gradients[0], ctx.group, ctx.dim), None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, scatter_dim: int, gather_dim: int) -> Tensor:
        ctx.group, ctx.dims = group, (gather_dim, scatter_dim)
        return _turned(x, group, scatter_dim, gather_dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _turned(gradients[0], ctx.group, *ctx.dims), None, None, None


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, sent: tuple[int, ...], received: tuple[int, ...]) -> Tensor:
        ctx.group, ctx.back = group, (received, sent)
        return _exchanged(x, group, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradients[0], ctx.group, *ctx.back), None, None, None


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, counts: tuple[int, ...], counted: bool) -> Tensor:
        ctx.group, ctx.counts, ctx.counted = group, counts, counted
        own = counts[group.rank]
        repeated = x.contiguous().repeat(group.size, *[1] * (x.ndim - 1))
        return _exchanged(repeated, group, [own] * group.size, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        own = ctx.counts[ctx.group.rank]
        mine = gradients[0] if ctx.counted else torch.zeros_like(gradients[0])
        parts = _exchanged(mine, ctx.group, ctx.counts, [own] * ctx.group.size)
        return parts.unflatten(0, (ctx.group.size, own)).sum(dim=0), None, None, None
