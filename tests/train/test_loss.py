"""Losses are summed by modality; a loss that is not finite stops the step and names its rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from elasmo.model.batch import Batch, collate
from elasmo.model.encoded import Encoded
from elasmo.train.loss import EMPTY, NumericalError, Sums, check_finite


def targets() -> Batch:
    """Three samples whose targets are what the sums below count."""
    samples = [Encoded.of_tokens(np.full(3, 9, np.int32), np.zeros(3, np.uint8)) for _ in range(3)]
    return replace(collate(samples), labels=torch.tensor([[5, -100, 7], [-100, 3, -100], [-100, 9, 9]]))


def sums() -> Sums:
    losses = torch.tensor([[1.0, 0.0, 2.0], [0.0, 4.0, 0.0], [0.0, 0.5, 0.5]])
    correct = torch.tensor([[True, False, True], [False, False, False], [False, True, True]])
    made = Sums()
    made.add(losses, correct, targets(), ["image", "audio", "image"])
    return made


def test_sums_by_modality() -> None:
    made = sums()
    assert made.loss == {"image": 4.0, "audio": 4.0}
    assert made.tokens == {"image": 4, "audio": 1}
    assert made.accuracy() == {"image": 1.0, "audio": 0.0}
    assert made.mean_loss() == pytest.approx(8 / 5)
    assert made.loss_by_modality() == {"image": 1.0, "audio": 4.0}


def test_merging_ranks_equals_adding_their_batches() -> None:
    merged = sums()
    merged.merge(sums())
    assert merged.loss == {"image": 8.0, "audio": 8.0}
    assert merged.rows == {"image": 4, "audio": 2}
    assert merged.right == {"image": 4, "audio": 0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_names_step_slot_and_rows(bad: float) -> None:
    check_finite(torch.ones(2, 3), 4, 1, (10, 11))
    with pytest.raises(NumericalError, match=r"step 5, slot 1 is not finite \(rows 10, 11\)"):
        check_finite(torch.tensor([[0.0, bad]]), 4, 1, (10, 11))


def test_the_empty_sample_has_no_target() -> None:
    batch = collate([EMPTY])
    assert bool((batch.labels < 0).all())
