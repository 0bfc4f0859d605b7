"""Encoded samples in numpy, as gold counts them and streams carry them. No torch: decoders start fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from elasmo.config import LossOn, TokensConfig
from elasmo.model.mel import Mel
from elasmo.model.tokenizer import PAD

OURS = TokensConfig()
"""Ids of the tokenizers trained here."""


@dataclass(frozen=True)
class Costs:
    """Tokens that each module processes for one sample, and how many of them are targets."""

    decoder: int
    vision: int
    audio: int
    table: int
    target: int


@dataclass(frozen=True)
class Encoded:
    """One sample ready for the model.

    Attributes:
        tokens: int32 [tokens]; placeholders stand where media embeddings go.
        loss_mask: uint8 [tokens], 1 where the token is to be predicted.
        images: uint8 [images, size, size, channels].
        audio: log-mel frames [frames, n_mels] for each clip, float16, or float32 with border frames for Whisper.
        cell_fields: int16 [cells], field number of each table cell.
        cell_values: float32 [cells], standardised number, or whole days since 1970 of a time; else 0.
        cell_categories: int16 [cells], category number from 1; 0 for other kinds, -1 for a missing value.
        cell_details: int32 [details], of a text the buckets of its n-grams, of a time its second of the day.
        cell_detail_of: int32 [details], the cell in this sample that a detail belongs to.
    """

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    images: NDArray[np.uint8]
    audio: tuple[Mel, ...]
    cell_fields: NDArray[np.int16]
    cell_values: NDArray[np.float32]
    cell_categories: NDArray[np.int16]
    cell_details: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    cell_detail_of: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @classmethod
    def empty(cls) -> Self:
        """Two pad tokens, no target, no medium: what a rank runs when it has no slot but must join collectives."""
        return cls.of_tokens(np.full(2, PAD, np.int32), np.zeros(2, np.uint8))

    @classmethod
    def of_tokens(cls, tokens: NDArray[np.int32], loss_mask: NDArray[np.uint8]) -> Self:
        """A sample of text alone."""
        return cls(
            tokens,
            loss_mask,
            np.zeros((0, 0, 0, 0), np.uint8),
            (),
            np.zeros(0, np.int16),
            np.zeros(0, np.float32),
            np.zeros(0, np.int16),
        )

    def costs(self, ids: TokensConfig = OURS) -> Costs:
        """Tokens by module; the vision tower's are the placeholders its images fill."""
        vision, audio, table = (int((self.tokens == token).sum()) for token in ids.media)
        # The first token has nothing before it to be predicted from.
        return Costs(len(self.tokens), vision, audio, table, target=int(self.loss_mask[1:].sum()))

    @property
    def nbytes(self) -> int:
        """Size of all arrays."""
        arrays = (value for value in vars(self).values() if isinstance(value, np.ndarray))
        return sum(array.nbytes for array in (*arrays, *self.audio))

    def with_targets(self, loss_on: LossOn, ids: TokensConfig = OURS) -> Self:
        """The sample with other targets: `answers` is as it was encoded, `all` is every token but media."""
        if loss_on == "answers":
            return self
        return replace(self, loss_mask=(~np.isin(self.tokens, ids.media)).astype(np.uint8))

    def to_row(self) -> dict[str, Any]:
        """The sample as a flat row of bytes and shapes, without loss; `from_row` takes it back."""
        return {
            "tokens": self.tokens.tobytes(),
            "loss_mask": self.loss_mask.tobytes(),
            "images": self.images.tobytes(),
            "image_shape": list(self.images.shape),
            "audio": [clip.tobytes() for clip in self.audio],
            "audio_mels": self.audio[0].shape[1] if self.audio else 0,
            "audio_dtype": str(self.audio[0].dtype) if self.audio else "float16",
            "cell_fields": self.cell_fields.tobytes(),
            "cell_values": self.cell_values.tobytes(),
            "cell_categories": self.cell_categories.tobytes(),
            "cell_details": self.cell_details.tobytes(),
            "cell_detail_of": self.cell_detail_of.tobytes(),
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """The sample that `to_row` wrote."""
        return cls(
            np.frombuffer(row["tokens"], np.int32),
            np.frombuffer(row["loss_mask"], np.uint8),
            np.frombuffer(row["images"], np.uint8).reshape(row["image_shape"]),
            tuple(
                np.frombuffer(clip, row.get("audio_dtype", "float16")).reshape(-1, row["audio_mels"])
                for clip in row["audio"]
            ),
            np.frombuffer(row["cell_fields"], np.int16),
            np.frombuffer(row["cell_values"], np.float32),
            np.frombuffer(row["cell_categories"], np.int16),
            np.frombuffer(row.get("cell_details", b""), np.int32),
            np.frombuffer(row.get("cell_detail_of", b""), np.int32),
        )
