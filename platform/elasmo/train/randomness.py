"""Randomness by rule: what a step draws is a function of the run's seed and the step, so nothing needs to be saved.

A generator's state belongs to a rank of a layout and means nothing in another one; a rule does.
"""

from __future__ import annotations

import random

import numpy as np
import torch

RULE = "torch, numpy and random are seeded before each step by (seed, step, data-parallel rank)"


def seed_step(seed: int, step: int, dp_rank: int) -> None:
    """Seeds this process's generators for a step; ranks that share a slot draw the same."""
    words = np.random.SeedSequence([seed % 2**63, step, dp_rank]).generate_state(2, np.uint64)
    torch.manual_seed(int(words[0]) % 2**63)
    np.random.seed(int(words[1]) % 2**32)
    random.seed(int(words[1]))
