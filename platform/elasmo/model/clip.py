"""The image towers of CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023), with LLaVA's projector."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import VisionConfig


def activate(x: Tensor, name: str) -> Tensor:
    """GELU, its tanh form, or CLIP's x * sigmoid(1.702 x)."""
    if name == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="tanh" if name == "gelu_pytorch_tanh" else "none")


class EncoderAttention(nn.Module):
    """Bidirectional self-attention with separate projections; Whisper's has no bias on keys."""

    def __init__(self, hidden: int, heads: int, key_bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden, bias=key_bias)
        self.v_proj = nn.Linear(hidden, hidden)
        self.out_proj = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """[batch, seq, hidden] -> the same; `mask` bool [batch, 1, 1, seq] is true at real positions."""
        query, key, value = (
            projection(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        out: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return out


class ClipMLP(nn.Module):
    """Two layers with an activation between."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.fc1 = nn.Linear(config.hidden, config.ffn)
        self.fc2 = nn.Linear(config.ffn, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(activate(self.fc1(x), self.activation))
        return out


class ClipLayer(nn.Module):
    """Pre-norm attention and feed-forward on the residual stream."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden, config.norm_eps)
        self.self_attn = EncoderAttention(config.hidden, config.heads)
        self.layer_norm2 = nn.LayerNorm(config.hidden, config.norm_eps)
        self.mlp = ClipMLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out


class Projector(nn.Module):
    """LLaVA 1.5's two layers into the decoder's width."""

    def __init__(self, hidden: int, out: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(hidden, out)
        self.linear_2 = nn.Linear(out, out)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.linear_2(F.gelu(self.linear_1(x)))
        return projected


class ClipVisionTower(nn.Module):
    """Images to one embedding a patch. Layers after the one whose output is used are not built."""

    def __init__(self, config: VisionConfig, out: int) -> None:
        super().__init__()
        self.config = config
        clip = config.kind == "clip"
        patches = (config.image_size // config.patch) ** 2
        self.class_embedding = nn.Parameter(torch.zeros(config.hidden)) if clip else None
        self.patch_embedding = nn.Conv2d(
            config.channels, config.hidden, config.patch, stride=config.patch, bias=not clip
        )
        self.position_embedding = nn.Embedding(patches + clip, config.hidden)
        self.pre_layernorm = nn.LayerNorm(config.hidden, config.norm_eps) if clip else None
        used = config.layers + 1 + config.feature_layer
        self.layers = nn.ModuleList(ClipLayer(config) for _ in range(used))
        self.projector = Projector(config.hidden, out) if config.projector == "mlp" else nn.Linear(config.hidden, out)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [images, size, size, channels] -> [images, tokens, out]."""
        weight = self.patch_embedding.weight
        mean, std = (torch.tensor(x, device=weight.device)[:, None, None] for x in (self.config.mean, self.config.std))
        pixels = ((images.permute(0, 3, 1, 2) / 255.0 - mean) / std).to(weight.dtype)
        x = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        if self.class_embedding is not None:
            x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], dim=1)
        # Called as a module: sharding gathers a module's weights around its call.
        x = x + self.position_embedding(torch.arange(x.shape[1], device=x.device))
        if self.pre_layernorm is not None:
            x = self.pre_layernorm(x)
        for layer in self.layers:
            x = layer(x)
        if self.class_embedding is not None and self.config.select == "patch":
            x = x[:, 1:]
        out: Tensor = self.projector(x)
        return out
