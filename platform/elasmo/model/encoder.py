"""The transformer encoder block that the vision and audio towers share: pre-norm, bidirectional, optional mask."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class EncoderBlock(nn.Module):
    """Self-attention and a GELU feed-forward network on the residual stream."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.fc1 = nn.Linear(hidden, ffn)
        self.fc2 = nn.Linear(ffn, hidden)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]; `mask` bool [batch, 1, 1, seq] is true at real positions."""
        batch, seq, hidden = x.shape
        query, key, value = self.qkv(self.norm1(x)).view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, seq, hidden))
        out: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return out
