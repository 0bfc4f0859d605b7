"""Fusion by gated cross-attention (Alayrac et al. 2022, section 2.1.2): text tokens look at latents of media.

A token attends to the last medium at or before it in its own sample, and to no other, as in Flamingo; what earlier
media say reaches it through self-attention. A token without a medium before it passes every block unchanged, so a
sample of text alone runs the language model as it is, whatever the blocks have learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class MediaContext:
    """What the tokens of a batch may look at.

    Attributes:
        latents: [rows, hidden], latents of all media; the first row is zero and is what tokens without a medium see.
        mask: bool [batch * seq, rows], which rows each token attends to; at least one.
        reached: bool [batch, seq, 1], whether a token has a medium; with Megatron's sequence parallelism, whose blocks
            begin with fewer tokens than attend, of those with which they begin.
    """

    latents: Tensor
    mask: Tensor
    reached: Tensor

    def last(self) -> Tensor:
        """[latents, hidden] that the last token attends to, and with it every token after; no rows without a medium."""
        return self.latents[1:][self.mask[-1, 1:]]


def media_context(latents: Tensor, medium: Tensor) -> MediaContext:
    """The context of tokens that attend to given media.

    Args:
        latents: [media, latents, hidden].
        medium: int64 [batch, seq], from 1, the medium a token attends to, 0 for none.
    """
    count, each, hidden = latents.shape
    owner = torch.arange(1, count + 1, device=medium.device).repeat_interleave(each)
    owner = F.pad(owner, (1, 0))
    rows = torch.cat([latents.new_zeros(1, hidden), latents.flatten(0, 1)])
    return MediaContext(rows, medium.flatten()[:, None] == owner, (medium > 0)[:, :, None])


def last_medium(tokens: Tensor, positions: Tensor, counts: Mapping[int, int]) -> Tensor:
    """The medium that each token attends to, int64 [batch, seq], from 1; 0 where none came before it in its sample.

    Args:
        tokens: int64 [batch, seq].
        positions: int64 [batch, seq], zero at the first token of each sample of a row.
        counts: media by the token that stands for one; they are numbered kind after kind in this order, within a kind
            in reading order.
    """
    number = torch.zeros_like(tokens)
    first = 1
    for token, count in counts.items():
        numbers = torch.arange(first, first + count, device=tokens.device)
        number = number.masked_scatter(tokens == token, numbers)
        first += count
    column = torch.arange(tokens.shape[1], device=tokens.device)
    # A sample's first token hides the media of the sample before it in a packed row.
    latest = torch.where((number > 0) | (positions == 0), column, 0).cummax(dim=1).values
    return number.gather(1, latest)


class MediaAttention(nn.Module):
    """Attention of tokens to latents; neither has positions."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.head_size = hidden // heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, context: MediaContext) -> Tensor:
        """[batch, seq, hidden] -> the same."""
        latents = context.latents.to(x.dtype)
        query, key, value = (
            rows.unflatten(-1, (-1, self.head_size)).transpose(0, 1)[None]
            for rows in (self.q_proj(x).flatten(0, 1), self.k_proj(latents), self.v_proj(latents))
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=context.mask)
        mixed: Tensor = self.o_proj(attended[0].transpose(0, 1).flatten(1).unflatten(0, x.shape[:2]))
        return mixed


class GatedCrossAttention(nn.Module):
    """Attention to media and a feed-forward network, each behind a tanh gate that starts closed."""

    def __init__(self, hidden: int, heads: int, mlp: nn.Module, norm_eps: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden, norm_eps)
        self.attention = MediaAttention(hidden, heads)
        self.attention_gate = nn.Parameter(torch.zeros(1))
        self.mlp_norm = nn.RMSNorm(hidden, norm_eps)
        self.mlp = mlp
        self.mlp_gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, context: MediaContext) -> Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]."""
        x = x + self.attention_gate.tanh() * self.attention(self.attention_norm(x), context) * context.reached
        out: Tensor = x + self.mlp_gate.tanh() * self.mlp(self.mlp_norm(x)) * context.reached
        return out
