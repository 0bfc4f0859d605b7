"""Numbers of workers that suit a layout, and the sentence when none does."""

from __future__ import annotations

import pytest

from elasmo.config import load
from elasmo.parallel.planner import LayoutError, legal_sizes


def sizes(*overrides: str, vocab_size: int | None = 512) -> list[int]:
    config = load(None, overrides, {})
    return legal_sizes(config.train, config.model, vocab_size)


@pytest.mark.parametrize(
    ("overrides", "legal"),
    [
        ((), [1, 2]),
        (("train.layout.tp=2",), [2]),
        (("train.layout.tp=2", "train.workers.max=7"), [2, 4, 6]),
        (("train.layout.tp=2", "train.workers.min=3", "train.workers.max=5"), [4]),
        (("train.layout.pp=2", "train.workers.max=8"), [2, 4, 6]),  # dp=4 leaves each rank 1 of 4 slots, 1f1b needs 2
    ],
)
def test_sizes_are_the_multiples_of_the_cuts_on_which_nothing_is_refused(
    overrides: tuple[str, ...], legal: list[int]
) -> None:
    assert sizes(*overrides) == legal


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ("train.layout.tp=3",),
            "train.layout needs a multiple of tp=3 x pp=1 x sp=1 = 3 workers, and train.workers.min=1 to "
            "train.workers.max=2 has none; set train.workers.max=3, or change train.layout.",
        ),
        (
            ("train.layout.tp=2", "train.workers.min=3", "train.workers.max=3"),
            "train.layout needs a multiple of tp=2 x pp=1 x sp=1 = 2 workers, and train.workers.min=3 to "
            "train.workers.max=3 has none; set train.workers.max=4, or change train.layout.",
        ),
        (
            ("train.layout.tp=4", "train.workers.max=4"),
            "train.layout is refused on 4 workers: tp=4 x sp=1 must divide kv_heads=2: a rank attends with whole "
            "heads.",
        ),
        (
            ("train.layout={pp: 2, chunks: 2}",),
            "train.layout is refused on 2 workers: pp=2 x chunks=2 exceeds layers=2; chunks=2 does not suit "
            "schedule=1f1b, which has 1 to 1 a rank.",
        ),
    ],
)
def test_a_range_without_a_legal_size_is_refused_with_the_mend(overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(LayoutError) as refused:
        sizes(*overrides)
    assert str(refused.value) == sentence


def test_a_vocabulary_that_is_not_known_bounds_nothing() -> None:
    wide = ("train.layout.tp=4", "train.workers.max=4", "model.decoder.kv_heads=4")
    assert sizes(*wide, vocab_size=None) == [4]
    with pytest.raises(LayoutError, match=r"on 4 workers: tp=4 exceeds vocab_size=3\.$"):
        sizes(*wide, vocab_size=3)
