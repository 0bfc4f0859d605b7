"""The Whisper tower equals transformers' encoders, for clips of any lengths in one batch, from sound to features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Qwen2AudioEncoder,
    Qwen2AudioEncoderConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
)
from transformers.models.whisper.modeling_whisper import WhisperEncoder
from transformers.models.whisper.modeling_whisper import sinusoids as their_sinusoids

from elasmo.config import AudioConfig
from elasmo.model.mel import BORDER, whisper_mel
from elasmo.model.processor import audio_tokens
from elasmo.model.whisper import WhisperTower, sinusoids

CONFIG = AudioConfig(
    kind="whisper",
    sample_rate=16_000,
    n_fft=400,
    hop=160,
    n_mels=80,
    max_s=1.0,
    max_positions=50,
    hidden=24,
    layers=2,
    heads=4,
    ffn=40,
)
SHAPE: dict[str, Any] = {
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "num_mel_bins": 80,
    "max_source_positions": 50,
}
LENGTHS = [(16_000, 15_839, 5_000), (480, 1_601, 9_999, 15_999), (3_200,)]
"""Samples: whole windows, odd and even frames, tails that reach into the frames after the clip."""


def clips(lengths: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(len(lengths))
    return [random.uniform(-0.5, 0.5, length).astype(np.float32) for length in lengths]


def features(sounds: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """What the feature extractor gives: [clips, n_mels, window] and frames of each clip."""
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    made = extractor(sounds, sampling_rate=16_000, return_attention_mask=True, return_tensors="pt")
    return made["input_features"], made["attention_mask"].sum(dim=1)


def padded(sounds: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """What our processor gives, as `collate` lays it out."""
    rows = [torch.from_numpy(whisper_mel(sound, CONFIG)) for sound in sounds]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def pair(theirs: nn.Module, config: AudioConfig) -> WhisperTower:
    """Our tower with their weights, all random, and no projection."""
    generator = torch.Generator().manual_seed(5)
    for parameter in theirs.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    made = WhisperTower(config, config.hidden)
    state = theirs.eval().state_dict()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if not name.startswith("projector"):
                parameter.copy_(state[name])
    made.projector = nn.Identity()  # type: ignore[assignment]
    return made


@torch.no_grad()
@pytest.mark.parametrize("lengths", LENGTHS)
def test_equals_qwen2_audios_encoder(lengths: tuple[int, ...]) -> None:
    theirs = Qwen2AudioEncoder(Qwen2AudioEncoderConfig(**SHAPE))
    ours, sounds = pair(theirs, CONFIG), clips(lengths)
    mel, frames = features(sounds)
    positions, tokens = theirs._get_feat_extract_output_lengths(frames)
    mask = (torch.arange(50) < positions[:, None])[:, None, None, :].expand(-1, 1, 50, -1)
    out = theirs(mel, attention_mask=torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))).last_hidden_state
    wanted = torch.cat([row[:count] for row, count in zip(out, tokens.tolist(), strict=True)])
    rows, row_lengths = padded(sounds)
    assert ours.tokens(row_lengths).tolist() == tokens.tolist()
    assert [audio_tokens(n, CONFIG) for n in row_lengths.tolist()] == tokens.tolist()
    torch.testing.assert_close(ours(rows, row_lengths), wanted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("lengths", LENGTHS)
def test_without_pooling_equals_whispers_encoder(lengths: tuple[int, ...]) -> None:
    """Whisper itself attends to the silence as well, so its layers get the mask that Qwen2-Audio gives its own."""
    config = CONFIG.model_copy(update={"pool": False})
    theirs = WhisperEncoder(WhisperConfig(**SHAPE))
    ours, sounds = pair(theirs, config), clips(lengths)
    mel, frames = features(sounds)
    positions = (frames - 1) // 2 + 1
    x = nn.functional.gelu(theirs.conv2(nn.functional.gelu(theirs.conv1(mel)))).transpose(1, 2)
    x = x + theirs.embed_positions.weight
    mask = (torch.arange(50) < positions[:, None])[:, None, None, :].expand(-1, 1, 50, -1)
    for layer in theirs.layers:
        x = layer(x, torch.zeros(mask.shape).masked_fill(~mask, float("-inf")))
    wanted = torch.cat([row[:count] for row, count in zip(theirs.layer_norm(x), positions.tolist(), strict=True)])
    rows, row_lengths = padded(sounds)
    assert [audio_tokens(n, config) for n in row_lengths.tolist()] == positions.tolist()
    torch.testing.assert_close(ours(rows, row_lengths), wanted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_clips_as_long_as_the_window_equal_whispers_whole_forward_pass() -> None:
    theirs = WhisperEncoder(WhisperConfig(**SHAPE))
    ours, sounds = pair(theirs, CONFIG.model_copy(update={"pool": False})), clips((16_000, 16_000))
    wanted = theirs(features(sounds)[0]).last_hidden_state.flatten(0, 1)
    torch.testing.assert_close(ours(*padded(sounds)), wanted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_frames_after_a_clip_matter() -> None:
    """A control: with zeros in their place, as in a plain padded batch, the last embedding is another one."""
    ours = pair(Qwen2AudioEncoder(Qwen2AudioEncoderConfig(**SHAPE)), CONFIG)
    (rows, lengths) = padded(clips((5_000,)))
    zeroed = rows.clone()
    zeroed[:, -BORDER:] = 0.0
    assert (ours(rows, lengths)[-1] - ours(zeroed, lengths)[-1]).abs().max() > 1e-2


def test_a_clip_longer_than_the_position_table_is_refused() -> None:
    tower = WhisperTower(CONFIG, 8)
    with pytest.raises(ValueError, match="A clip has 101 mel frames; at most 100 are allowed"):
        tower(torch.zeros(1, 103, 80), torch.tensor([103]))


def test_positions_start_as_whispers_sinusoids() -> None:
    assert torch.allclose(sinusoids(50, 24), their_sinusoids(50, 24), atol=1e-6)
