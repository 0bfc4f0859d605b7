"""A gate before DeepSpeed's optimizer: the gradient is whole, its norm is known, and a step can still be dropped.

Dropping takes DeepSpeed's own way for overflows: weights, masters, moments and step counters stay bit for bit what they
were, and the gradients are gone. Beside `deepspeed_adapter`, this is what knows DeepSpeed's insides, pinned likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from deepspeed.runtime.utils import clip_grad_norm_, combine_grad_norm_groups

from elasmo.train.deepspeed_adapter import zero_stage

Gate = Callable[[float], bool]
"""Takes the norm of the whole gradient, not finite or negative where it is wrong; whether the step is to be taken."""
_INVALID = -1.0
"""What DeepSpeed writes for a norm that is not finite; with it a step is an overflow."""


def install_gate(engine: Any, gate: Gate) -> None:
    """Has every optimizer step of an engine ask `gate` first; all ranks must get the same answer.

    Args:
        engine: of `build_engine`; what ZeRO stage it has decides where the gate stands.
    """
    {0: _plain, 1: _partitioned, 2: _partitioned, 3: _sharded}[zero_stage(engine)](engine, gate)


def _plain(engine: Any, gate: Gate) -> None:
    """Without ZeRO the engine clips, then steps torch's own optimizer, which stands where ZeRO's would."""
    step, take = engine.optimizer.step, [True]

    def clip() -> None:
        norm = clip_grad_norm_(engine.module.parameters(), max_norm=engine.gradient_clipping(), mpu=engine.mpu)
        take[0] = gate(float(norm))

    def guarded(*args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs) if take[0] else None

    engine.clip_fp32_gradients = clip
    engine.optimizer.step = guarded


def _partitioned(engine: Any, gate: Gate) -> None:
    optimizer = engine.optimizer
    norm_of = optimizer.scaled_global_norm

    def norm(*args: Any, **kwargs: Any) -> Any:
        found = norm_of(*args, **kwargs)
        return found if gate(float(found)) else torch.full_like(torch.as_tensor(found), _INVALID)

    optimizer.scaled_global_norm = norm
    # Also under bfloat16 an invalid norm then drops the step; the norm says what a pass over the gradients would.
    optimizer.check_grad_overflow = True
    optimizer.check_overflow = lambda *args, **kwargs: None


def _sharded(engine: Any, gate: Gate) -> None:
    optimizer = engine.optimizer
    norms_of = optimizer._get_norm_groups

    def norms() -> Any:
        found = norms_of()
        return found if gate(float(combine_grad_norm_groups(found))) else [torch.tensor(_INVALID) for _ in found]

    optimizer._get_norm_groups = norms
