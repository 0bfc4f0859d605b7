"""The image tower: a small ViT (Dosovitskiy et al. 2021) with a convolutional stem (Xiao et al. 2021)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import VisionConfig
from elasmo.model.encoder import EncoderBlock


class VisionTower(nn.Module):
    """Images to one embedding a patch.

    Two 3x3 convolutions at full resolution come before the patches: on small images they learn strokes in far fewer
    steps than attention over raw patches, and let patches be large, which shortens the decoder's sequence.
    """

    def __init__(self, config: VisionConfig, out: int) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv2d(config.channels, config.stem, 3, padding=1)
        self.conv2 = nn.Conv2d(config.stem, config.stem, 3, padding=1)
        self.patch = nn.Conv2d(config.stem, config.hidden, config.patch, stride=config.patch)
        self.position = nn.Parameter(torch.zeros(config.tokens, config.hidden))
        self.blocks = nn.ModuleList(EncoderBlock(config.hidden, config.heads, config.ffn) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.projector = nn.Linear(config.hidden, out)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [images, size, size, channels] -> [images, tokens, out]."""
        pixels = images.permute(0, 3, 1, 2).to(self.conv1.weight.dtype) / 127.5 - 1.0
        features = F.gelu(self.conv2(F.gelu(self.conv1(pixels))))
        x = self.patch(features).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.projector(self.norm(x))
        return out
