"""The image tower: a small ViT (Dosovitskiy et al. 2021) with a convolutional stem (Xiao et al. 2021)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import VisionConfig
from elasmo.model.encoder import EncoderBlock


class VisionTower(nn.Module):
    """Images to one embedding a patch. The stem lets a patch see its neighbours, which small images need."""

    def __init__(self, config: VisionConfig, out: int) -> None:
        super().__init__()
        self.config = config
        self.stem = nn.Conv2d(config.channels, config.hidden, 3, padding=1)
        self.patch = nn.Conv2d(config.hidden, config.hidden, config.patch, stride=config.patch)
        self.position = nn.Parameter(torch.zeros(config.tokens, config.hidden))
        self.blocks = nn.ModuleList(EncoderBlock(config.hidden, config.heads, config.ffn) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.projector = nn.Linear(config.hidden, out)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [images, size, size, channels] -> [images, tokens, out]."""
        pixels = images.permute(0, 3, 1, 2).to(self.stem.weight.dtype) / 127.5 - 1.0
        x = self.patch(F.gelu(self.stem(pixels))).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.projector(self.norm(x))
        return out
