"""The training loss: summed over target tokens, kept apart by modality, divided once by the global batch's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from elasmo.model.batch import Batch
from elasmo.model.encoded import Encoded

PREFIX = "trained."
"""What wrapping adds to parameter names; checkpoints drop it."""


EMPTY = Encoded.empty()
"""A sample without target or medium: what a rank runs when it has no slot left and must still join collectives."""


class NumericalError(ValueError):
    """A loss that is not finite, with the rows it came from."""


@dataclass
class Sums:
    """Losses, target tokens and right answers by modality."""

    loss: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    right: dict[str, int] = field(default_factory=dict)

    def add(self, losses: Tensor, correct: Tensor, batch: Batch, modalities: Sequence[str]) -> None:
        """Adds a micro-batch; a row is right when every target token has the highest logit."""
        targets = batch.labels >= 0
        row_loss = batch.sum_by_sample(losses.detach())
        row_tokens = [int(count) for count in batch.sum_by_sample(targets)]
        row_right = [wrong == 0 for wrong in batch.sum_by_sample(targets & ~correct)]
        for name, loss, tokens, right in zip(modalities, row_loss, row_tokens, row_right, strict=True):
            self.loss[name] = self.loss.get(name, 0.0) + loss
            self.tokens[name] = self.tokens.get(name, 0) + tokens
            self.rows[name] = self.rows.get(name, 0) + 1
            self.right[name] = self.right.get(name, 0) + int(right)

    def merge(self, other: Sums) -> None:
        """Adds another rank's sums."""
        for name, loss in other.loss.items():
            self.loss[name] = self.loss.get(name, 0.0) + loss
        for ours, theirs in ((self.tokens, other.tokens), (self.rows, other.rows), (self.right, other.right)):
            for name, count in theirs.items():
                ours[name] = ours.get(name, 0) + count

    def mean_loss(self) -> float:
        return sum(self.loss.values()) / max(1, sum(self.tokens.values()))

    def loss_by_modality(self) -> dict[str, float]:
        return {name: self.loss[name] / self.tokens[name] for name in sorted(self.loss) if self.tokens[name]}

    def accuracy(self) -> dict[str, float]:
        return {name: self.right[name] / self.rows[name] for name in sorted(self.rows)}


def check_finite(losses: Tensor, step: int, slot: int, row_ids: Sequence[int]) -> None:
    """Stops a step whose loss is not finite before it reaches the weights.

    Raises:
        NumericalError: names the step, the slot and its rows.
    """
    if not bool(torch.isfinite(losses.detach()).all()):
        rows = ", ".join(map(str, row_ids))
        raise NumericalError(
            f"The loss of step {step + 1}, slot {slot} is not finite (rows {rows}); lower train.lr or remove the rows."
        )
