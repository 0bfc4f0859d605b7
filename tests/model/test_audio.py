"""The audio tower: clips of any length, padded or alone, give the same embeddings, one for four mel frames."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from elasmo.config import AudioConfig
from elasmo.model.audio import AudioTower
from elasmo.model.processor import audio_tokens

CONFIG = AudioConfig(n_mels=5, hidden=12, layers=2, heads=3, ffn=16)
OUT = 7


def tower() -> AudioTower:
    built = AudioTower(CONFIG, OUT)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return built


def clips(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(length, CONFIG.n_mels, generator=generator) for length in lengths]


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(9, 23), (1, 2, 3, 4), (17, 16, 15), (5, 40, 6)])
def test_padding_changes_nothing(lengths: tuple[int, ...]) -> None:
    model, parts = tower(), clips(*lengths)
    padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    together = model(padded, torch.tensor(lengths))
    alone = torch.cat([model(part[None], torch.tensor([len(part)])) for part in parts])
    assert together.shape == alone.shape == (sum(audio_tokens(length, CONFIG) for length in lengths), OUT)
    assert (together - alone).abs().max() <= 1e-5


@torch.no_grad()
def test_clips_come_one_after_the_other() -> None:
    model, parts = tower(), clips(12, 8)
    padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    before = model(padded, torch.tensor([12, 8]))
    padded[1] += 1.0
    after = model(padded, torch.tensor([12, 8]))
    assert torch.allclose(before[:3], after[:3], atol=1e-6)
    assert (before[3:] - after[3:]).abs().amax(-1).min() > 1e-4


@torch.no_grad()
def test_front_end_equals_strided_convolutions_written_out() -> None:
    """Blocks and norm are made the identity, so what is left is convolutions and fixed positions."""
    model = AudioTower(CONFIG.model_copy(update={"layers": 1}), CONFIG.hidden)
    model.blocks = torch.nn.ModuleList()
    model.norm, model.projector = torch.nn.Identity(), torch.nn.Identity()  # type: ignore[assignment]
    (clip,) = clips(10)
    got = model(clip[None], torch.tensor([10]))

    def convolve(x: np.ndarray, layer: torch.nn.Conv1d) -> np.ndarray:
        weight, bias = layer.weight.numpy(), layer.bias.numpy()
        rows = [np.zeros(x.shape[1]), *x, np.zeros(x.shape[1])]
        out = [
            [(weight[c] * np.stack(rows[t : t + 3], axis=1)).sum() + bias[c] for c in range(len(bias))]
            for t in range(0, len(x), 2)
        ]
        values = np.array(out)
        return values * 0.5 * (1 + np.vectorize(math.erf)(values / math.sqrt(2)))

    wanted = convolve(convolve(clip.numpy(), model.conv1), model.conv2)
    half = CONFIG.hidden // 2
    for position in range(len(wanted)):
        for i in range(half):
            angle = position * 10_000 ** (-2 * i / CONFIG.hidden)
            wanted[position, i] += math.sin(angle)
            wanted[position, half + i] += math.cos(angle)
    assert np.abs(got.numpy() - wanted).max() < 1e-5
