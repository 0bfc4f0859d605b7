"""The torch batches that the model computes: encoded samples, padded or packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elasmo.model.attention import Attention, CausalAttention, PackedAttention
from elasmo.model.encoded import Encoded
from elasmo.model.tokenizer import PAD

IGNORED = -100
"""Label of a position that is no target."""


@dataclass
class Batch:
    """A micro-batch: a sample a row, padded on the right, or all samples packed one after the other into one row.

    Media of all samples are stacked in sample order.

    Attributes:
        tokens: int64 [batch, seq].
        labels: int64 [batch, seq], the next token where that is a target, else -100.
        positions: int64 [batch, seq], each token's place in its sample; padding goes on counting.
        lengths: tokens of each sample.
        packed: whether the samples share one row.
        images: uint8 [images, size, size, channels].
        mel: float32 [clips, frames, n_mels], padded with zeros.
        mel_lengths: int64 [clips], frames of each clip.
        cell_fields, cell_values, cell_categories: [cells], as in `Encoded`.
        cell_details: int64 [details], as in `Encoded`.
        cell_detail_of: int64 [details], the cell in this batch that a detail belongs to.
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor
    lengths: tuple[int, ...]
    packed: bool
    images: Tensor
    mel: Tensor
    mel_lengths: Tensor
    cell_fields: Tensor
    cell_values: Tensor
    cell_categories: Tensor
    cell_details: Tensor
    cell_detail_of: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The batch on another device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def attention(self) -> Attention:
        """Causal attention within each sample."""
        if not self.packed:
            return CausalAttention()
        spare = self.tokens.shape[1] - sum(self.lengths)
        return PackedAttention([*self.lengths, spare])

    def real(self) -> Tensor | None:
        """bool [batch, seq], false at padding; None where there is no padding."""
        rows, width = self.tokens.shape
        if self.tokens.numel() == sum(self.lengths):
            return None
        filled = [sum(self.lengths)] if self.packed else list(self.lengths)
        reach = torch.arange(width, device=self.tokens.device).expand(rows, width)
        return reach < torch.tensor(filled, device=self.tokens.device)[:, None]

    def sum_by_sample(self, values: Tensor) -> list[float]:
        """Sums `values` [batch, seq] over each sample."""
        if not self.packed:
            return [float(x) for x in values.sum(dim=1).tolist()]
        parts = values[0, : sum(self.lengths)].cpu().split(list(self.lengths))
        return [float(part.sum()) for part in parts]


def collate(samples: Sequence[Encoded]) -> Batch:
    """A batch of one row a sample, each padded to the longest."""
    longest = max(len(sample.tokens) for sample in samples)
    tokens = np.full((len(samples), longest), PAD, np.int64)
    labels = np.full((len(samples), longest), IGNORED, np.int64)
    positions = np.tile(np.arange(longest), (len(samples), 1))
    for row, sample in enumerate(samples):
        count = len(sample.tokens)
        tokens[row, :count] = sample.tokens
        labels[row, :count] = _labels(sample)
    return _batch(samples, tokens, labels, positions, packed=False)


def pack(samples: Sequence[Encoded], multiple: int = 1, budget: int | None = None) -> Batch:
    """A batch of one row with all samples, filled up with padding.

    Args:
        multiple: the row's length is a multiple of it, so that ranks can share it evenly.
        budget: the row's length, for shapes that stay the same over steps; a multiple of `multiple`.

    Raises:
        ValueError: the samples exceed the budget.
    """
    count = sum(len(sample.tokens) for sample in samples)
    width = -(-count // multiple) * multiple if budget is None else budget
    if width < count or width % multiple:
        raise ValueError(f"{count} tokens do not fit a budget of {width} in multiples of {multiple}.")
    spare = width - count
    tokens = np.concatenate([*(sample.tokens for sample in samples), np.full(spare, PAD)]).astype(np.int64)
    labels = np.concatenate([*(_labels(sample) for sample in samples), np.full(spare, IGNORED)])
    positions = np.concatenate([*(np.arange(len(sample.tokens)) for sample in samples), np.arange(spare)])
    return _batch(samples, tokens[None], labels[None], positions[None], packed=True)


def _labels(sample: Encoded) -> NDArray[np.int64]:
    """The next token where it is a target; nothing follows a sample's last token."""
    labels = np.full(len(sample.tokens), IGNORED, np.int64)
    labels[:-1] = np.where(sample.loss_mask[1:], sample.tokens[1:], IGNORED)
    return labels


def _batch(
    samples: Sequence[Encoded],
    tokens: NDArray[np.int64],
    labels: NDArray[np.int64],
    positions: NDArray[np.int64],
    packed: bool,
) -> Batch:
    images = [image for sample in samples for image in sample.images]
    clips = [clip for sample in samples for clip in sample.audio]
    mel = np.zeros((len(clips), max((len(c) for c in clips), default=0), clips[0].shape[1] if clips else 0), np.float32)
    for number, clip in enumerate(clips):
        mel[number, : len(clip)] = clip
    first_cells = np.cumsum([0, *(len(sample.cell_fields) for sample in samples[:-1])])
    return Batch(
        tokens=torch.from_numpy(tokens),
        labels=torch.from_numpy(labels),
        positions=torch.from_numpy(positions),
        lengths=tuple(len(sample.tokens) for sample in samples),
        packed=packed,
        images=torch.from_numpy(np.stack(images) if images else np.zeros((0, 0, 0, 0), np.uint8)),
        mel=torch.from_numpy(mel),
        mel_lengths=torch.tensor([len(clip) for clip in clips], dtype=torch.int64),
        cell_fields=_join([sample.cell_fields for sample in samples]).long(),
        cell_values=_join([sample.cell_values for sample in samples]),
        cell_categories=_join([sample.cell_categories for sample in samples]).long(),
        cell_details=_join([sample.cell_details for sample in samples]).long(),
        cell_detail_of=_join(
            [sample.cell_detail_of + start for sample, start in zip(samples, first_cells, strict=True)]
        ).long(),
    )


def _join(parts: Sequence[NDArray[Any]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
