"""Loads are what they say: rates, lengths, bursts, traces read to the letter, and a sentence for what they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elasmo.simulate.load import LoadError, Request, bursts, parse_load, poisson, read_azure, read_mooncake, scaled


def test_poisson_has_its_rate_and_lengths() -> None:
    load = poisson(5, 20_000, 1000, 200, prompt_cv=1.5, output_cv=0.5, seed=1)
    gaps = np.diff([each.arrival_s for each in load])
    assert gaps.mean() == pytest.approx(0.2, rel=0.03) and gaps.std() == pytest.approx(0.2, rel=0.03)
    prompts = np.array([each.prompt_tokens for each in load])
    assert prompts.mean() == pytest.approx(1000, rel=0.04)
    assert prompts.std() / prompts.mean() == pytest.approx(1.5, rel=0.06)


def test_bursts_keep_the_rate_and_come_together() -> None:
    load = bursts(5, 20_000, 100, 10, size=20, seed=1)
    times = np.array([each.arrival_s for each in load])
    assert len(times) / times[-1] == pytest.approx(5, rel=0.1)
    assert (np.diff(times) == 0).mean() == pytest.approx(0.95, abs=0.01)


def test_a_seed_makes_one_load() -> None:
    assert poisson(5, 50, 100, 10, seed=3) == poisson(5, 50, 100, 10, seed=3) != poisson(5, 50, 100, 10, seed=4)


def test_an_azure_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    )
    assert read_azure(path) == [Request(0.0, 4808, 10), Request(pytest.approx(0.052), 3180, 8)]


def test_a_mooncake_trace_keeps_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"timestamp": 40, "input_length": 600, "output_length": 3, "hash_ids": [7, 8]}\n')
    assert read_mooncake(path) == [Request(0.0, 600, 3, (7, 8))]
    assert scaled(read_mooncake(path), length=0.5) == [Request(0.0, 300, 2)], "half a block is another block"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("poisson:rate=4", "lacks prompt, output"),
        ("poisson:rate=0,prompt=1,output=1", "rate=0 must be greater than 0"),
        ("poisson:rate=4,prompt=1,output=1,size=3", "size belongs to bursts"),
        ("poisson:speed=4", "'speed=4' is not one of"),
        ("somewhere", "neither poisson"),
        ("missing.csv", "cannot be read as an Azure trace"),
        ("missing.jsonl", "cannot be read as a Mooncake trace"),
    ],
)
def test_a_load_that_is_none_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(LoadError, match=sentence):
        parse_load(text)
