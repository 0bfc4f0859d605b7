"""Whisper's encoder (Radford et al. 2022) as Qwen2-Audio uses it: pooled by two and projected into the decoder.

The position table, sinusoids in Whisper, is a parameter here as in its checkpoints; freeze it to keep it fixed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import AudioConfig
from elasmo.model.clip import EncoderAttention
from elasmo.model.mel import BORDER


def sinusoids(positions: int, hidden: int) -> Tensor:
    """Whisper's position table before training, [positions, hidden]."""
    rates = torch.exp(-math.log(10_000.0) / (hidden // 2 - 1) * torch.arange(hidden // 2))
    angles = torch.arange(positions)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class WhisperLayer(nn.Module):
    """Pre-norm attention and feed-forward on the residual stream."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden)
        self.self_attn = EncoderAttention(config.hidden, config.heads, key_bias=False)
        self.final_layer_norm = nn.LayerNorm(config.hidden)
        self.fc1 = nn.Linear(config.hidden, config.ffn)
        self.fc2 = nn.Linear(config.ffn, config.hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), mask)
        out: Tensor = x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))
        return out


class WhisperTower(nn.Module):
    """Clips to one embedding for four mel frames, or for two without pooling.

    Whisper sees a window of fixed length, silence after the clip. Masked attention over a shorter row gives the same at
    the clip's positions, since each clip brings the two frames that its last position sees beyond it (`mel.BORDER`).
    """

    def __init__(self, config: AudioConfig, out: int) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv1d(config.n_mels, config.hidden, 3, padding=1)
        self.conv2 = nn.Conv1d(config.hidden, config.hidden, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.max_positions, config.hidden)
        self.layers = nn.ModuleList(WhisperLayer(config) for _ in range(config.layers))
        self.layer_norm = nn.LayerNorm(config.hidden)
        self.projector = nn.Linear(config.hidden, out)

    def forward(self, mel: Tensor, lengths: Tensor) -> Tensor:
        """Embeddings of the real positions of all clips, one after the other, [positions, out].

        Args:
            mel: float32 [clips, frames, n_mels], each clip followed by its border frames.
            lengths: int64 [clips], frames of each clip and its border.

        Raises:
            ValueError: a clip is longer than the position table.
        """
        window = self.config.window_frames
        if mel.shape[1] > window + BORDER:
            raise ValueError(
                f"A clip has {mel.shape[1] - BORDER} mel frames; at most {window} are allowed "
                "(2 x model.audio.max_positions)."
            )
        x = F.gelu(self.conv1(mel[:, :window].transpose(1, 2).to(self.conv1.weight.dtype)))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        positions = torch.arange(x.shape[1], device=x.device)
        x = x + self.embed_positions(positions)
        real = positions < (lengths[:, None] - BORDER + 1) // 2
        for layer in self.layers:
            x = layer(x, real[:, None, None, :])
        if self.config.pool:
            x = x[:, : x.shape[1] // 2 * 2].unflatten(1, (-1, 2)).mean(dim=2)
        kept = positions[: x.shape[1]] < self.tokens(lengths)[:, None]
        out: Tensor = self.projector(self.layer_norm(x[kept]))
        return out

    def tokens(self, lengths: Tensor) -> Tensor:
        """Embeddings of each clip, int64 [clips], for its frames and border [clips]."""
        positions = (lengths - BORDER + 1) // 2
        return positions // 2 if self.config.pool else positions
