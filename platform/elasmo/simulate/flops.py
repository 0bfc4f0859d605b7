"""Model FLOPs of a token, by the formula that MFU and HFU name.

A multiplication and an addition count as two. Products with weights count 2 for each active parameter forward and 4
backward (Kaplan et al. 2020; Chowdhery et al. 2022, appendix B); attention counts the pairs that a causal mask leaves.
Embedding look-ups, norms and activations count nothing. Frozen parts count forward only.
"""

from __future__ import annotations

from elasmo.simulate.model import Model
from elasmo.simulate.operators import pairs

FORMULA = "6 x active weights in products + 3 x causal attention pairs x 2(key + value width), a token"


def attention_flops(model: Model, seq: float, causal: bool = True) -> float:
    """Of attention's pairs in the forward pass, for one token of a sequence."""
    return sum(
        2 * own.heads * (own.head_dim + own.value_dim) * pairs(seq, seq, causal, own.window) / seq
        for own in (layer.attention for layer in model.layers)
    )


def forward_flops(model: Model, seq: float, causal: bool = True) -> float:
    """Of the decoder, for one token of a sequence."""
    weights = 0.0
    for layer in model.layers:
        own = layer.attention
        weights += sum(outputs * inputs for outputs, inputs in own.products(model.hidden))
        if layer.feed_forward is not None:
            weights += (3 if layer.feed_forward.gated else 2) * model.hidden * layer.feed_forward.width
        if layer.experts is not None:
            experts = layer.experts
            wide = experts.top_k * experts.each.width + experts.shared_width
            weights += (3 if experts.each.gated else 2) * model.hidden * wide + model.hidden * experts.count
        if layer.cross is not None:
            # Keys and values are of a few latents, not of every token.
            weights += layer.cross.parameters(model.hidden) - 2 * model.hidden**2
    return 2 * (weights + model.hidden * model.vocab) + attention_flops(model, seq, causal)


def tower_flops(model: Model, sequences: float = 1.0) -> tuple[float, float]:
    """Forward FLOPs of all towers for the media of a sequence: of trained ones, and of frozen ones."""
    trained, frozen = 0.0, 0.0
    for tower in model.towers:
        weights = float(sum(a * b for a, b in tower.attention.products(tower.hidden)))
        weights += (3 if tower.feed_forward.gated else 2) * tower.hidden * tower.feed_forward.width
        per = tower.positions * (
            2 * weights + 4 * tower.attention.heads * tower.attention.head_dim * tower.positions
        ) * tower.layers + 2 * tower.positions * tower.input_width * tower.hidden  # fmt: skip
        per *= tower.media * sequences
        trained, frozen = (trained, frozen + per) if tower.frozen else (trained + per, frozen)
    return trained, frozen


def step_flops(model: Model, seq: int, sequences: float, causal: bool = True, document: float | None = None) -> float:
    """Model FLOPs of a training step; `document`: of packed samples, the tokens that a query may attend to."""
    forward = forward_flops(model, document or seq, causal) * seq * sequences
    trained, frozen = tower_flops(model, sequences)
    # A frozen decoder still passes gradients to what lies before it: 2 of 3.
    return forward * (2 if model.frozen_decoder else 3) + 3 * trained + frozen
