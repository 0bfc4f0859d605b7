"""Tensor parallelism (Shoeybi et al. 2019): heads, feed-forward channels and vocabulary rows over the ranks of a group.

Column cuts need the block's whole input and row cuts sum its output, so the collectives stand at the borders of each
block, once for all the matrices in it. With Megatron's sequence parallelism (Korthikanti et al. 2022) the residual
stream between blocks is sharded by tokens: a block gathers its input and scatters its output instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.model.decoder import DecoderLayer, SwiGLU
from elasmo.model.lora import LoraLinear
from elasmo.model.moe import MoE
from elasmo.parallel.collectives import copy_to, gather, reduce_from, reduce_scatter
from elasmo.parallel.mesh import Group
from elasmo.parallel.shards import Shard, cut

Move = Callable[[Tensor], Tensor]


def enter(group: Group, sequence: bool) -> Move:
    """The residual stream into a block."""
    return (lambda x: gather(x, group, dim=1)) if sequence else (lambda x: copy_to(x, group))


def leave(group: Group, sequence: bool) -> Move:
    """A block's partial output back into the residual stream."""
    return (lambda x: reduce_scatter(x, group, dim=1)) if sequence else (lambda x: reduce_from(x, group))


class RowLinear(nn.Linear):
    """A linear layer whose input channels are sharded: its output is summed over ranks, its bias added once."""

    leave: Move

    @classmethod
    def of(cls, linear: nn.Linear, leave: Move) -> RowLinear:
        """Takes over an already cut layer."""
        made = cls(1, 1, bias=False, device="meta")
        made.in_features, made.out_features = linear.in_features, linear.out_features
        made.weight, made.bias = linear.weight, linear.bias
        made.leave = leave
        return made

    def product(self, x: Tensor) -> Tensor:
        """This rank's part of the sum."""
        return F.linear(x, self.weight)

    def forward(self, x: Tensor) -> Tensor:
        out = self.leave(self.product(x))
        return out if self.bias is None else out + self.bias


class RowLoraLinear(RowLinear):
    """A `RowLinear` with an adapter, whose first matrix is sharded like the weight: both outputs are summed at once."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scale: float

    @classmethod
    def of(cls, linear: nn.Linear, leave: Move) -> RowLoraLinear:
        """Takes over an already cut `LoraLinear`."""
        made = super().of(linear, leave)
        assert isinstance(made, RowLoraLinear) and isinstance(linear, LoraLinear)
        made.lora_a, made.lora_b, made.scale = linear.lora_a, linear.lora_b, linear.scale
        return made

    def product(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale


class VocabEmbedding(nn.Module):
    """Some rows of the token embedding: partial embeddings of ids, scores of hidden states for its own rows."""

    def __init__(self, cut: nn.Embedding, start: int) -> None:
        super().__init__()
        self.weight = cut.weight
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        """Ids [..., ] -> partial embeddings [..., hidden]; hidden states [..., hidden] -> logits [..., rows]."""
        if x.is_floating_point():
            return F.linear(x, self.weight)
        row = x - self.start
        absent = (row < 0) | (row >= len(self.weight))
        return F.embedding(row.masked_fill(absent, 0), self.weight).masked_fill(absent[..., None], 0.0)


def cut_layer(layer: DecoderLayer, prefix: str, shards: dict[str, Shard], group: Group, sequence: bool) -> None:
    """Cuts a decoder layer's heads and channels over `group` and puts the collectives at its blocks' borders."""
    into, out_of = enter(group, sequence), leave(group, sequence)

    def columns(module: nn.Module, path: str, *names: str) -> None:
        for name in names:
            _cut_linear(getattr(module, name), f"{prefix}{path}.{name}", shards, 0, group)

    def rows(module: nn.Module, path: str, name: str) -> None:
        _cut_linear(getattr(module, name), f"{prefix}{path}.{name}", shards, 1, group)
        linear = getattr(module, name)
        kind = RowLoraLinear if isinstance(linear, LoraLinear) else RowLinear
        setattr(module, name, kind.of(linear, out_of))

    def attention(module: nn.Module, path: str) -> None:
        columns(module, path, "q_proj", "k_proj", "v_proj")
        rows(module, path, "o_proj")
        module.register_forward_pre_hook(_on_input(into))

    def mlp(module: nn.Module, path: str) -> None:
        columns(module, path, "gate_proj", "up_proj")
        rows(module, path, "down_proj")
        module.register_forward_pre_hook(_on_input(into))

    attention(layer.self_attn, "self_attn")
    if layer.cross_attention is not None:
        attention(layer.cross_attention.attention, "cross_attention.attention")
        mlp(layer.cross_attention.mlp, "cross_attention.mlp")
    if isinstance(layer.mlp, SwiGLU):
        mlp(layer.mlp, "mlp")
    elif isinstance(layer.mlp, MoE):
        for name, dim in (("gate_proj", 1), ("up_proj", 1), ("down_proj", 2)):
            cut(layer.mlp.experts, name, shards, f"{prefix}mlp.experts.{name}", dim, group.size, group.rank)
        layer.mlp.register_forward_hook(lambda module, args, output: out_of(output))
        layer.mlp.register_forward_pre_hook(_on_input(into))


def cross_entropy(logits: Tensor, labels: Tensor, start: int, group: Group) -> tuple[Tensor, Tensor]:
    """Cross-entropy float32 [targets] of logits [targets, rows] that are sharded by vocabulary, and top-1 correctness.

    Args:
        labels: int64 [targets], over the whole vocabulary.
        start: the first vocabulary row that is here.
    """
    logits = logits.float()
    top, best = logits.detach().max(dim=-1)
    highest = top.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group.handle)
    row = labels - start
    absent = (row < 0) | (row >= logits.shape[1])
    label_logit = logits.gather(1, row.masked_fill(absent, 0)[:, None])[:, 0].masked_fill(absent, 0.0)
    normaliser = reduce_from((logits - highest[:, None]).exp().sum(dim=-1), group)
    losses = normaliser.log() + highest - reduce_from(label_logit, group)
    # Of equal logits the lowest vocabulary row wins, as in an uncut argmax.
    winner = torch.where(top == highest, best + start, torch.iinfo(torch.int64).max)
    dist.all_reduce(winner, op=dist.ReduceOp.MIN, group=group.handle)
    return losses, winner == labels


def _cut_linear(linear: nn.Linear, name: str, shards: dict[str, Shard], dim: int, group: Group) -> None:
    cut(linear, "weight", shards, f"{name}.weight", dim, group.size, group.rank)
    if linear.bias is not None and dim == 0:
        cut(linear, "bias", shards, f"{name}.bias", 0, group.size, group.rank)
    if isinstance(linear, LoraLinear):
        # The matrix on the side that is cut; the other one, of few rows or columns, is whole on every rank.
        side = "lora_b" if dim == 0 else "lora_a"
        cut(linear, side, shards, f"{name}.{side}", dim, group.size, group.rank)
    linear.out_features, linear.in_features = linear.weight.shape


def _on_input(move: Move) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    return lambda module, args: (move(args[0]), *args[1:])
