"""Rotary position embedding (Su et al. 2021), in the half-split layout of Llama, and its extensions to long context."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from elasmo.config import RopeScalingConfig


def rotary(
    positions: Tensor, head_dim: int, theta: float, scaling: RopeScalingConfig | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for integer `positions` [batch, seq], each float32 [batch, 1, seq, head_dim]."""
    rates, magnitude = frequencies(head_dim, theta, scaling)
    angles = positions[:, None, :, None].float() * rates.to(positions.device)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * magnitude, angles.sin() * magnitude


def frequencies(head_dim: int, theta: float, scaling: RopeScalingConfig | None = None) -> tuple[Tensor, float]:
    """Radians a position for each pair of dimensions, float32 [head_dim / 2], and the factor on cosines and sines."""
    rates = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if scaling is None:
        return rates, 1.0
    if scaling.kind == "linear":
        return rates / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(rates, scaling), 1.0
    return _yarn(rates, head_dim, theta, scaling)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates queries or keys [batch, heads, seq, head_dim] by their positions."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


def _llama3(rates: Tensor, scaling: RopeScalingConfig) -> Tensor:
    """Long wavelengths slowed by `factor`, short ones kept, those between interpolated (Llama 3.1)."""
    wavelengths = 2 * math.pi / rates
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((scaling.original_max_seq / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return rates * kept + rates / scaling.factor * (1.0 - kept)


def _yarn(rates: Tensor, head_dim: int, theta: float, scaling: RopeScalingConfig) -> tuple[Tensor, float]:
    """NTK-by-parts interpolation with a temperature on attention (Peng et al. 2023, section 3)."""

    def dimension(turns: float) -> float:
        return head_dim * math.log(scaling.original_max_seq / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    magnitude = scaling.attention_factor
    if magnitude is None:
        magnitude = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return rates / scaling.factor * ramp + rates * (1.0 - ramp), magnitude
