"""The encoder block against attention written out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from elasmo.model.encoder import EncoderBlock

HIDDEN, HEADS = 12, 3


def block() -> EncoderBlock:
    built = EncoderBlock(HIDDEN, HEADS, 20)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return built


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * weight + bias


def naive(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """One unpadded sequence, float64 [seq, hidden]."""
    dim = HIDDEN // HEADS
    mixed = layer_norm(x, w["norm1.weight"], w["norm1.bias"]) @ w["qkv.weight"].T + w["qkv.bias"]
    heads = []
    for head in range(HEADS):
        query, key, value = (mixed[:, part * HIDDEN + head * dim :][:, :dim] for part in range(3))
        heads.append((query @ key.T / math.sqrt(dim)).softmax(-1) @ value)
    x = x + torch.cat(heads, dim=-1) @ w["out.weight"].T + w["out.bias"]
    inner = layer_norm(x, w["norm2.weight"], w["norm2.bias"]) @ w["fc1.weight"].T + w["fc1.bias"]
    inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    return x + inner @ w["fc2.weight"].T + w["fc2.bias"]


@torch.no_grad()
def test_equals_attention_written_out_and_masks_padding_exactly() -> None:
    model = block()
    x = torch.randn(2, 5, HIDDEN, generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([5, 3])
    mask = torch.arange(5)[None] < lengths[:, None]
    got = model(x, mask[:, None, None, :])
    weights = {name: value.double() for name, value in model.state_dict().items()}
    for row, length in enumerate(lengths.tolist()):
        assert torch.allclose(got[row, :length].double(), naive(weights, x[row, :length].double()), atol=1e-5)


@torch.no_grad()
def test_every_position_sees_every_other_without_a_mask() -> None:
    model = block()
    x = torch.randn(1, 4, HIDDEN, generator=torch.Generator().manual_seed(2))
    changed = x.clone()
    changed[0, 3, 0] += 2.0
    assert (model(x) - model(changed)).abs().amax(-1).min() > 1e-4
