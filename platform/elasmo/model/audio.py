"""The audio tower: log-mel frames through two strided convolutions and a transformer encoder, in Whisper's manner."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import AudioConfig
from elasmo.model.encoder import EncoderBlock


class AudioTower(nn.Module):
    """Clips to one embedding for four mel frames (Radford et al. 2022, with a second stride)."""

    def __init__(self, config: AudioConfig, out: int) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv1d(config.n_mels, config.hidden, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(config.hidden, config.hidden, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(EncoderBlock(config.hidden, config.heads, config.ffn) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.projector = nn.Linear(config.hidden, out)

    def forward(self, mel: Tensor, lengths: Tensor) -> Tensor:
        """Embeddings of the real positions of all clips, one after the other, [positions, out].

        Args:
            mel: float32 [clips, frames, n_mels], zero beyond each clip.
            lengths: int64 [clips], frames of each clip.
        """
        x = F.gelu(self.conv1(mel.transpose(1, 2).to(self.conv1.weight.dtype)))
        # Beyond a clip's end the next convolution must see zeros, as it would at the end of an unpadded clip.
        x = x * _real(x.shape[2], (lengths + 1) // 2)[:, None, :]
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        real = _real(x.shape[1], self.tokens(lengths))
        x = x + _sinusoids(x.shape[1], x.shape[2], x.device).to(x.dtype)
        for block in self.blocks:
            x = block(x, real[:, None, None, :])
        out: Tensor = self.projector(self.norm(x[real]))
        return out

    def tokens(self, lengths: Tensor) -> Tensor:
        """Embeddings of each clip, int64 [clips], for its frames [clips]."""
        return (lengths + 3) // 4


def _real(positions: int, lengths: Tensor) -> Tensor:
    return torch.arange(positions, device=lengths.device)[None, :] < lengths[:, None]


def _sinusoids(positions: int, hidden: int, device: torch.device) -> Tensor:
    """Fixed positions (Vaswani et al. 2017), [positions, hidden]."""
    rates = 10_000.0 ** (-torch.arange(0, hidden, 2, device=device) / hidden)
    angles = torch.arange(positions, device=device)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :hidden]
