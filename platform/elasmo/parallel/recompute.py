"""Activation recomputation: layers keep little of their forward pass, and the backward pass computes the rest again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from elasmo.model.decoder import DecoderLayer  # and with it the operators of its attention
from elasmo.parallel.layout import Recompute

_aten = torch.ops.aten
KEPT = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.elasmo.block_attention.default,
    torch.ops.torch_attn._varlen_attn.default,
}
"""Matrix products and attention: nearly all of a layer's time. Norms, rotations and gates are computed again."""


def recompute_layer(layer: DecoderLayer, how: Recompute) -> None:
    """Makes a layer forget activations after its forward pass, in training only."""
    if how == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if how == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    plain: Callable[..., Any] = layer.forward
    layer.forward = partial(checkpoint, plain, **options)  # type: ignore[method-assign]


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
