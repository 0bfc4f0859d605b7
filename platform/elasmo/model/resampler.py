"""The Perceiver resampler (Jaegle et al. 2021; Alayrac et al. 2022, section 2.1.1): any medium to a few latents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResamplerLayer(nn.Module):
    """Latents attend to the medium and to one another, then pass a feed-forward network."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.media_norm = nn.LayerNorm(hidden)
        self.latents_norm = nn.LayerNorm(hidden)
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.out_proj = nn.Linear(hidden, hidden, bias=False)
        self.ffn_norm = nn.LayerNorm(hidden)
        self.fc1 = nn.Linear(hidden, ffn)
        self.fc2 = nn.Linear(ffn, hidden)

    def forward(self, latents: Tensor, media: Tensor, mask: Tensor) -> Tensor:
        """Latents [media, latents, hidden] -> the same.

        Args:
            media: [media, positions, hidden].
            mask: bool [media, 1, 1, positions + latents], false at padding.
        """
        normed = self.latents_norm(latents)
        source = torch.cat([self.media_norm(media), normed], dim=1)
        query, key, value = (
            x.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for x in (self.q_proj(normed), self.k_proj(source), self.v_proj(source))
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        latents = latents + self.out_proj(attended.transpose(1, 2).flatten(2))
        out: Tensor = latents + self.fc2(F.gelu(self.fc1(self.ffn_norm(latents))))
        return out


class PerceiverResampler(nn.Module):
    """A medium of any number of positions to a fixed number of latents, which learned queries gather."""

    def __init__(self, hidden: int, latents: int, layers: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(latents, hidden))
        self.layers = nn.ModuleList(ResamplerLayer(hidden, heads, ffn) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, media: Tensor, real: Tensor) -> Tensor:
        """Media [media, positions, hidden] -> [media, latents, hidden].

        Args:
            real: bool [media, positions], false at padding.
        """
        latents = self.latents.to(media.dtype).expand(len(media), -1, -1)
        mask = torch.cat([real, real.new_ones(latents.shape[:2])], dim=1)[:, None, None, :]
        for layer in self.layers:
            latents = layer(latents, media, mask)
        out: Tensor = self.norm(latents)
        return out
