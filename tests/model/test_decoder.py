"""The decoder against a Llama written out: explicit mask, complex rotary positions, repeated heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from elasmo.config import DecoderConfig
from elasmo.model.attention import CausalAttention
from elasmo.model.decoder import Decoder

CONFIG = DecoderConfig(hidden=24, layers=2, heads=6, kv_heads=2, ffn=40, rope_theta=500.0)


def decoder() -> Decoder:
    built = Decoder(CONFIG)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return built


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + CONFIG.norm_eps) * weight


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """x float64 [seq, heads, head_dim]."""
    half = CONFIG.head_size // 2
    rates = torch.tensor([CONFIG.rope_theta ** (-i / half) for i in range(half)], dtype=torch.float64)
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * positions[:, None, None] * rates)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def naive(weights: dict[str, Tensor], x: Tensor, positions: Tensor) -> Tensor:
    """One sequence, float64 [seq, hidden]."""
    seq, dim, group = len(x), CONFIG.head_size, CONFIG.heads // CONFIG.kv_heads
    for layer in range(CONFIG.layers):
        w = {name.removeprefix(f"layers.{layer}."): value for name, value in weights.items()}
        normed = rms_norm(x, w["input_layernorm.weight"])
        query = turned((normed @ w["self_attn.q_proj.weight"].T).view(seq, CONFIG.heads, dim), positions)
        key = turned((normed @ w["self_attn.k_proj.weight"].T).view(seq, CONFIG.kv_heads, dim), positions)
        value = (normed @ w["self_attn.v_proj.weight"].T).view(seq, CONFIG.kv_heads, dim)
        heads = []
        for head in range(CONFIG.heads):
            scores = query[:, head] @ key[:, head // group].T / math.sqrt(dim)
            for row in range(seq):
                scores[row, row + 1 :] = -math.inf
            heads.append(scores.softmax(-1) @ value[:, head // group])
        x = x + torch.cat(heads, dim=-1) @ w["self_attn.o_proj.weight"].T
        normed = rms_norm(x, w["post_attention_layernorm.weight"])
        gate = normed @ w["mlp.gate_proj.weight"].T
        gated = gate / (1 + torch.exp(-gate)) * (normed @ w["mlp.up_proj.weight"].T)
        x = x + gated @ w["mlp.down_proj.weight"].T
    return rms_norm(x, weights["norm.weight"])


@torch.no_grad()
def test_equals_llama_written_out() -> None:
    model = decoder()
    x = torch.randn(2, 7, CONFIG.hidden, generator=torch.Generator().manual_seed(1))
    positions = torch.stack([torch.arange(7), torch.arange(7) + 31])
    got = model(x, positions, CausalAttention())
    weights = {name: value.double() for name, value in model.state_dict().items()}
    for row in range(2):
        assert torch.allclose(got[row].double(), naive(weights, x[row].double(), positions[row]), atol=1e-5)


@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_one() -> None:
    model = decoder()
    x = torch.randn(1, 6, CONFIG.hidden, generator=torch.Generator().manual_seed(2))
    changed = x.clone()
    changed[0, 4] += 1.0
    before, after = (model(value, torch.arange(6)[None], CausalAttention()) for value in (x, changed))
    assert torch.equal(before[0, :4], after[0, :4])
    assert not torch.allclose(before[0, 4:], after[0, 4:])
