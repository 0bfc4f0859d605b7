"""The token decoder of the Llama and Qwen families, dense or with experts."""

from __future__ import annotations

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import CrossAttentionConfig, DecoderConfig
from elasmo.model.attention import Attention
from elasmo.model.cross_attention import GatedCrossAttention, MediaContext
from elasmo.model.moe import MoE
from elasmo.model.rope import rotary, rotate


class DecoderAttention(nn.Module):
    """Grouped-query self-attention (Ainslie et al. 2023) with rotary positions."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.layer = layer
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
        self.q_proj = nn.Linear(config.hidden, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, config.hidden, bias=config.out_bias)
        self.q_norm = nn.RMSNorm(config.head_size, config.norm_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(config.head_size, config.norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]."""
        query = self._heads(self.q_proj(x), self.q_norm)
        key = self._heads(self.k_proj(x), self.k_norm)
        value = self._heads(self.v_proj(x))
        out = attention.attend(self.layer, rotate(query, cos, sin), rotate(key, cos, sin), value)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return mixed

    def _heads(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        """[batch, seq, heads * head_size] -> [batch, heads, seq, head_size]."""
        split = x.unflatten(2, (-1, self.head_size))
        out: Tensor = (split if norm is None else norm(split)).transpose(1, 2)
        return out


class SwiGLU(nn.Module):
    """Gated feed-forward network (Shazeer 2020)."""

    def __init__(self, hidden: int, ffn: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, ffn, bias=bias)
        self.up_proj = nn.Linear(hidden, ffn, bias=bias)
        self.down_proj = nn.Linear(ffn, hidden, bias=bias)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream; some layers look at media before that."""

    def __init__(self, config: DecoderConfig, layer: int, cross_attention: GatedCrossAttention | None = None) -> None:
        super().__init__()
        self.cross_attention = cross_attention
        self.input_layernorm = nn.RMSNorm(config.hidden, config.norm_eps)
        self.self_attn = DecoderAttention(config, layer)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, config.norm_eps)
        experts = config.moe is not None and config.moe.has_experts(layer)
        self.mlp: nn.Module = (
            MoE(config.moe, config.hidden)
            if experts and config.moe
            else SwiGLU(config.hidden, config.ffn, config.mlp_bias)
        )

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attention: Attention,
        real: Tensor | None = None,
        context: MediaContext | None = None,
    ) -> Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]; `real` bool [batch, seq] is false at padding."""
        if self.cross_attention is not None and context is not None:
            x = self.cross_attention(x, context)
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attention)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x), real)
        return out


class Decoder(nn.Module):
    """The stack of layers between embeddings and logits.

    Args:
        cross_attention: blocks that look at media, when the model has them.
    """

    def __init__(self, config: DecoderConfig, cross_attention: CrossAttentionConfig | None = None) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, _media_block(config, cross_attention, layer)) for layer in range(config.layers)
        )
        self.norm = nn.RMSNorm(config.hidden, config.norm_eps)

    def forward(
        self,
        embeddings: Tensor,
        positions: Tensor,
        attention: Attention,
        real: Tensor | None = None,
        context: MediaContext | None = None,
    ) -> Tensor:
        """Hidden states [batch, seq, hidden] of embeddings [batch, seq, hidden] at integer positions [batch, seq]."""
        out: Tensor = self.norm(self.run(self.layers, embeddings, positions, attention, real, context))
        return out

    def run(
        self,
        layers: Iterable[nn.Module],
        x: Tensor,
        positions: Tensor,
        attention: Attention,
        real: Tensor | None,
        context: MediaContext | None,
    ) -> Tensor:
        """Some of the layers, before the last norm."""
        cos, sin = rotary(positions, self.config.head_size, self.config.rope_theta, self.config.rope_scaling)
        for layer in layers:
            x = layer(x, cos, sin, attention, real, context)
        return x


def _media_block(
    config: DecoderConfig, cross_attention: CrossAttentionConfig | None, layer: int
) -> GatedCrossAttention | None:
    if cross_attention is None or not cross_attention.has_block(layer):
        return None
    mlp = SwiGLU(config.hidden, cross_attention.ffn or config.ffn)
    return GatedCrossAttention(config.hidden, cross_attention.heads, mlp, config.norm_eps)
