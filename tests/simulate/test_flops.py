from __future__ import annotations

import pytest

from elasmo.simulate.describe import known_model
from elasmo.simulate.flops import forward_flops, step_flops


def test_a_dense_decoder_has_six_flops_a_weight_and_token_and_attention_besides() -> None:
    """PaLM's formula: 6 N + 12 L H Q T without a mask (Chowdhery et al. 2022, appendix B)."""
    model = known_model("Llama-2-7B")
    weights = model.parameters - model.hidden * model.vocab - (2 * model.depth + 1) * model.hidden
    palm = 6 * weights + 12 * model.depth * 32 * 128 * 4096
    assert step_flops(model, 4096, 1, causal=False) / 4096 == pytest.approx(palm, rel=1e-6)


def test_experts_count_those_of_a_token() -> None:
    model = known_model("Mixtral-8x7B")
    assert forward_flops(model, 1) == pytest.approx(2 * model.active_parameters, rel=0.02)


def test_a_window_bounds_attention() -> None:
    model = known_model("GPT-OSS-120B")
    short, long = forward_flops(model, 1024), forward_flops(model, 131_072)
    full = 4 * 64 * 64 * 131_072 / 2 * 18  # half of the layers see all
    assert long - short == pytest.approx(full, rel=0.05)
