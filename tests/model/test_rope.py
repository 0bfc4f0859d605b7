"""Rotary positions against complex multiplication (Su et al. 2021, equation 12)."""

from __future__ import annotations

import torch

from elasmo.model.rope import rotary, rotate

HEAD_DIM, THETA = 8, 10_000.0


def by_complex_numbers(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    half = HEAD_DIM // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    rates = torch.tensor([THETA ** (-2 * i / HEAD_DIM) for i in range(half)], dtype=torch.float64)
    turned = pairs * torch.exp(1j * positions[:, None, :, None].double() * rates)
    return torch.cat([turned.real, turned.imag], dim=-1)


def test_rotation_is_a_complex_multiplication() -> None:
    x = torch.randn(2, 3, 5, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 100, 101, 200, 255]])
    got = rotate(x, *rotary(positions, HEAD_DIM, THETA))
    assert torch.allclose(got.double(), by_complex_numbers(x, positions), atol=5e-5)


def test_scores_depend_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 1, 1, 1, HEAD_DIM, generator=generator)

    def score(at: int, to: int) -> float:
        turned = [rotate(x, *rotary(torch.tensor([[p]]), HEAD_DIM, THETA)) for x, p in ((query, at), (key, to))]
        return float((turned[0] * turned[1]).sum())

    assert abs(score(5, 2) - score(95, 92)) < 1e-4
    assert abs(score(5, 2) - score(5, 3)) > 1e-2


def test_bfloat16_stays_bfloat16() -> None:
    x = torch.ones(1, 1, 2, HEAD_DIM, dtype=torch.bfloat16)
    assert rotate(x, *rotary(torch.arange(2)[None], HEAD_DIM, THETA)).dtype == torch.bfloat16
