"""The token decoder of the Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import DecoderConfig
from elasmo.model.attention import Attention
from elasmo.model.rope import rotary, rotate


class DecoderAttention(nn.Module):
    """Grouped-query self-attention (Ainslie et al. 2023) with rotary positions."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]."""
        batch, seq, _ = x.shape
        query, key, value = (
            projection(x).view(batch, seq, -1, self.config.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = attention.attend(self.layer, rotate(query, cos, sin), rotate(key, cos, sin), value)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, seq, -1))
        return mixed


class SwiGLU(nn.Module):
    """Gated feed-forward network (Shazeer 2020)."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, ffn, bias=False)
        self.up_proj = nn.Linear(hidden, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.self_attn = DecoderAttention(config, layer)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.mlp = SwiGLU(config.hidden, config.ffn)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attention)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """The stack of layers between embeddings and logits."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, config.norm_eps)

    def forward(self, embeddings: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Hidden states [batch, seq, hidden] of embeddings [batch, seq, hidden] at integer positions [batch, seq]."""
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta)
        x = embeddings
        for layer in self.layers:
            x = layer(x, cos, sin, attention)
        out: Tensor = self.norm(x)
        return out
