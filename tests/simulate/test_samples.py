from __future__ import annotations

import numpy as np
import pytest

from elasmo.simulate.samples import Samples, SamplesError, parse_samples


@pytest.mark.parametrize(("seq", "length"), [(1000, 400), (2048, 900), (4096, 512), (100, 100)])
def test_equal_samples_fill_what_division_says(seq: int, length: int) -> None:
    samples = Samples(length)
    assert samples.padded(seq) == length / seq
    assert samples.packed(seq) == pytest.approx(
        seq // length * length / seq, rel=2e-3
    )  # the last sequence may be short
    assert samples.attended(seq) == length


def test_lengths_have_the_mean_and_spread_that_they_are_given() -> None:
    lengths = np.array(Samples(900, 0.5).lengths)
    assert lengths.mean() == pytest.approx(900, rel=1e-3)
    assert lengths.std() / lengths.mean() == pytest.approx(0.5, rel=0.02)


def test_a_token_is_in_a_longer_sample_than_the_mean_one() -> None:
    """E[l^2] / E[l] = mean (1 + spread^2); against drawn samples where long ones are cut."""
    assert Samples(500, 0.5).attended(1 << 30) == pytest.approx(500 * 1.25, rel=0.02)
    draw = np.random.default_rng(0).lognormal(0, np.sqrt(np.log(2)), 200_000)
    draw *= 3000 / draw.mean()
    full, rest = draw // 4096, draw % 4096
    assert Samples(3000, 1.0).attended(4096) == pytest.approx(
        (full * 4096**2 + rest**2).sum() / draw.sum(), rel=0.02
    )  # fmt: skip


def test_pieces_are_the_samples_cut_and_nothing_else() -> None:
    samples = Samples(3000, 1.0)
    pieces = samples.pieces(2048)
    assert sum(pieces) == sum(samples.lengths) and 0 < min(pieces) <= max(pieces) <= 2048


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0, 2.0])
def test_packing_fills_more_than_padding_and_never_too_much(spread: float) -> None:
    samples = Samples(900, spread)
    assert samples.padded(2048) < samples.packed(2048) <= 1


def test_words_are_read() -> None:
    assert parse_samples("mean=900, spread=0.5,media=0.25") == Samples(900, 0.5, 0.25)


@pytest.mark.parametrize("text", ["900", "mean=x", "spread=0.5", "mean=0", "size=3"])
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(SamplesError, match="mean"):
        parse_samples(text)
