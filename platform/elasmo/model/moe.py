"""Mixture of experts: a router sends each token to its top experts, dropless or with a capacity (Fedus et al. 2021)."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import MoEConfig


class TokenShards(Protocol):
    """Where the tokens of a micro-batch are when a process holds a part of them: sums and offsets over all parts."""

    def total(self, counts: Tensor) -> Tensor:
        """The sum of `counts` over all parts, with gradients."""
        ...

    def before(self, counts: Tensor) -> Tensor:
        """The sum of `counts` over the parts that come earlier in the sequence."""
        ...


class WholeSequence:
    """All tokens are here."""

    def total(self, counts: Tensor) -> Tensor:
        return counts

    def before(self, counts: Tensor) -> Tensor:
        return torch.zeros_like(counts)


class Exchange(Protocol):
    """Moves tokens to where their experts are and back; see `Experts.forward`."""

    def run(self, experts: Experts, tokens: Tensor, counts: Tensor) -> Tensor: ...


class Experts(nn.Module):
    """SwiGLU networks side by side, their weights stacked by expert."""

    def __init__(self, experts: int, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.empty(experts, ffn, hidden))
        self.up_proj = nn.Parameter(torch.empty(experts, ffn, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, ffn))
        self.exchange: Exchange | None = None

    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """[tokens, hidden] sorted by expert, `counts` int64 [experts] of them for each -> [tokens, hidden]."""
        if self.exchange is not None:
            return self.exchange.run(self, tokens, counts)
        return self.compute(tokens, counts)

    def compute(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """The networks that are here on tokens sorted by them; one without tokens still gets a gradient, of zero."""
        parts = [
            F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
            for x, gate, up, down in zip(
                tokens.split(counts.tolist()), self.gate_proj, self.up_proj, self.down_proj, strict=True
            )
        ]
        return torch.cat(parts)


class MoE(nn.Module):
    """Router and experts in the place of a dense feed-forward network.

    Attributes:
        aux_scale: gradient that the load-balancing loss receives; 0 leaves it out. The trainer sets it, since the loss
            is a mean over the micro-batches of a global batch.
        aux_loss: the last forward pass's load-balancing loss, before its coefficient, for the log.
        shards: where the micro-batch's other tokens are.
    """

    def __init__(self, config: MoEConfig, hidden: int) -> None:
        super().__init__()
        self.config = config
        self.gate = nn.Linear(hidden, config.experts, bias=False)
        self.experts = Experts(config.experts, hidden, config.ffn)
        self.aux_scale = 0.0
        self.aux_loss: Tensor | None = None
        self.shards: TokenShards = WholeSequence()

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """[batch, seq, hidden] -> the same; `real` bool [batch, seq] is false at padding, which no expert sees."""
        tokens = x.reshape(-1, x.shape[-1])
        probabilities = F.linear(tokens.float(), self.gate.weight.float()).softmax(dim=-1)
        if real is not None:
            probabilities = probabilities * real.reshape(-1, 1)
        weights, chosen = probabilities.topk(self.config.top_k, dim=-1)
        if self.config.norm_topk:
            weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-20)
        sent = weights > 0
        picked = F.one_hot(chosen, self.config.experts) * sent[..., None]  # [tokens, top_k, experts]
        if self.config.capacity_factor is not None:
            sent = sent & self._within_capacity(picked, self.config.capacity_factor)
        out = self._run_experts(tokens, weights.to(x.dtype), chosen, sent)
        self.aux_loss = self._balance_loss(probabilities, picked.sum(dim=(0, 1)), real)
        if self.aux_scale and torch.is_grad_enabled():
            out = attach_loss(out, self.aux_loss, self.aux_scale * self.config.aux_loss)
        return out.view_as(x)

    def _run_experts(self, tokens: Tensor, weights: Tensor, chosen: Tensor, sent: Tensor) -> Tensor:
        source, slot = sent.nonzero(as_tuple=True)
        expert = chosen[source, slot]
        order = expert.argsort(stable=True)
        source, slot = source[order], slot[order]
        counts = torch.bincount(expert, minlength=self.config.experts)
        done = self.experts(tokens[source], counts) * weights[source, slot][:, None]
        return torch.zeros_like(tokens).index_add(0, source, done)

    def _within_capacity(self, picked: Tensor, factor: float) -> Tensor:
        """Which assignments are among the first of their expert: ceil(factor * all / experts), in order."""
        flat = picked.flatten(0, 1)
        counts = flat.sum(dim=0)
        limit = math.ceil(factor * float(self.shards.total(counts).sum()) / self.config.experts)
        place = flat.cumsum(dim=0) + self.shards.before(counts)
        return ((place * flat).sum(dim=1) <= limit).view(picked.shape[:2])

    def _balance_loss(self, probabilities: Tensor, assigned: Tensor, real: Tensor | None) -> Tensor:
        """experts * sum_e(share of assignments to e * mean probability of e): 1 when even (Fedus et al. 2021, eq. 4).

        With top_k above 1 the shares sum to 1 as well, so that an even load is 1 for any top_k.
        """
        count = probabilities.new_tensor(len(probabilities)) if real is None else real.sum().float()
        tokens = self.shards.total(count).clamp_min(1.0)
        share = self.shards.total(assigned.float()) / (tokens * self.config.top_k)
        mean = self.shards.total(probabilities.sum(dim=0)) / tokens
        return self.config.experts * (share * mean).sum()


def attach_loss(x: Tensor, loss: Tensor, scale: float) -> Tensor:
    """Passes `x` through and gives `loss` the gradient `scale`: a loss that needs no way to the end of the model."""
    out: Tensor = _Attach.apply(x, loss, scale)  # type: ignore[no-untyped-call]
    return out


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.scale, ctx.shape, ctx.dtype = scale, loss.shape, loss.dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients
        return gradient, torch.full(ctx.shape, ctx.scale, dtype=ctx.dtype, device=gradient.device), None
