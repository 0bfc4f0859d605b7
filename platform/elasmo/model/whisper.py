"""Whisper's encoder (Radford et al. 2022) as Qwen2-Audio uses it: pooled by two and projected into the decoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elasmo.config import AudioConfig
from elasmo.model.clip import EncoderAttention

BORDER = 2
"""Frames after a clip that its last position sees through the convolutions."""
SILENCE = 2.0
"""Whisper's features of silence lie this far below a clip's highest value: 8 decades of power, divided by 4."""


def whisper_tokens(frames: int) -> int:
    """Audio tokens of a clip of mel frames: a convolution of stride 2, then pairs averaged."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


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
    """Clips to one embedding for four mel frames.

    Whisper sees 30 seconds, silence after the clip. Masked attention over a shorter row gives the same, if the two
    frames after a clip, which its last position sees through the convolutions, hold what silence would.
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
            mel: float32 [clips, frames, n_mels], zero beyond each clip.
            lengths: int64 [clips], frames of each clip, at least 3.

        Raises:
            ValueError: a clip is longer than the position table.
        """
        if mel.shape[1] > 2 * self.config.max_positions:
            raise ValueError(
                f"A clip has {mel.shape[1]} mel frames; at most {2 * self.config.max_positions} are allowed "
                "(2 x model.audio.max_positions)."
            )
        frames = min(mel.shape[1] + BORDER + mel.shape[1] % 2, 2 * self.config.max_positions)
        inside = torch.arange(frames, device=mel.device)[None, :] < lengths[:, None]
        mel = F.pad(mel, (0, 0, 0, frames - mel.shape[1]))
        highest = mel.masked_fill(~inside[:, :, None], float("-inf")).amax(dim=(1, 2))
        mel = torch.where(inside[:, :, None], mel, (highest - SILENCE)[:, None, None])
        x = F.gelu(self.conv1(mel.transpose(1, 2).to(self.conv1.weight.dtype)))
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        x = x + self.embed_positions.weight[: x.shape[1]]
        positions = torch.arange(x.shape[1], device=x.device)[None, :]
        real = positions < ((lengths - 1) // 2 + 1)[:, None]
        for layer in self.layers:
            x = layer(x, real[:, None, None, :])
        pairs = x[:, : x.shape[1] // 2 * 2].unflatten(1, (-1, 2)).mean(dim=2)
        kept = torch.arange(pairs.shape[1], device=x.device)[None, :] < _tokens(lengths)[:, None]
        out: Tensor = self.projector(self.layer_norm(pairs[kept]))
        return out


def _tokens(lengths: Tensor) -> Tensor:
    return ((lengths - 1) // 2 + 1 - 2) // 2 + 1
