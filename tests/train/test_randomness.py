"""What a step draws depends on the seed, the step and the data-parallel rank, and on nothing that came before."""

from __future__ import annotations

import random

import numpy as np
import torch

from elasmo.train.randomness import seed_step


def draw(seed: int, step: int, rank: int) -> tuple[float, float, float]:
    seed_step(seed, step, rank)
    return float(torch.rand(())), float(np.random.rand()), random.random()


def test_a_resumed_step_draws_what_it_would_have_drawn() -> None:
    run = [draw(7, step, 0) for step in range(5)]
    torch.rand(100), np.random.rand(100), random.random()
    assert [draw(7, step, 0) for step in (3, 4)] == run[3:]


def test_steps_ranks_and_seeds_draw_apart() -> None:
    drawn = [draw(seed, step, rank) for seed in (0, 1) for step in range(4) for rank in range(3)]
    for generator in zip(*drawn, strict=True):
        assert len(set(generator)) == len(drawn)
