"""What a rank must hold: bytes of model states under ZeRO and of activations a token, derived in docs/parallel.md."""

from __future__ import annotations

from dataclasses import dataclass

from elasmo.config import DecoderConfig
from elasmo.parallel.layout import Recompute

MASTER_AND_MOMENTS = 12
"""Bytes a parameter of float32 master, mean and variance."""
BUCKET = 500_000_000
"""DeepSpeed's default: most elements whose gradients are reduced together."""


@dataclass(frozen=True)
class StateBytes:
    """Bytes of model states on one rank, between two micro-batches of a step."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def state_bytes(parameters: int, zero_stage: int, ranks: int, bfloat16: bool = False) -> StateBytes:
    """Weights, gradients and optimizer state of a rank (Rajbhandari et al. 2020, section 3).

    DeepSpeed keeps float32 masters beside float32 weights too, from stage 1 on; the paper counts them in mixed
    precision only.

    Args:
        parameters: trained ones that the layout leaves to this rank before ZeRO shards them.
        ranks: that hold the same parameters, `Layout.zero_ranks`.

    Raises:
        ValueError: ZeRO 0 with bfloat16, which the planner refuses.
    """
    size = 2 if bfloat16 else 4
    if zero_stage == 0 and bfloat16:
        raise ValueError("zero_stage=0 with bfloat16 is refused by the planner; use zero_stage 1, 2 or 3.")
    if zero_stage == 0:
        return StateBytes(size * parameters, size * parameters, 8 * parameters)
    own = parameters / ranks
    weights = own if zero_stage == 3 else parameters
    gradients = own if zero_stage >= 2 else parameters
    return StateBytes(size * weights, size * gradients, MASTER_AND_MOMENTS * own)


def bucket_elements(parameters: int) -> int:
    """Elements of ZeRO's reduction bucket: no more than there are to reduce, since stage 3 reserves all of it."""
    return max(1, min(BUCKET, parameters))


def activation_bytes(config: DecoderConfig, recompute: Recompute, bfloat16: bool = False) -> float:
    """Bytes a token that a dense decoder layer keeps for its backward pass, its input included, its output not.

    Packed rows, on the CPU; tensor parallelism is not in it.

    Raises:
        ValueError: a decoder with what the formula leaves out.
    """
    for name in ("moe", "qk_norm", "qkv_bias", "out_bias", "mlp_bias"):
        if getattr(config, name):
            raise ValueError(f"decoder.{name} is not in the formula of activations; leave it out.")
    size, h, f = (2 if bfloat16 else 4), config.hidden, config.ffn
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    normaliser = 0 if bfloat16 else 4 * config.heads  # of each query's softmax, which torch's SDPA keeps
    if recompute == "full":
        return size * h
    if recompute == "selective":
        # Input; the seven matrix products: queries, keys and values, output, gate and up, down; attention.
        return size * (h + (queries + 2 * keys) + h + 2 * f + h + queries) + normaliser
    # Two norms keep their input and what they normalised, in float32, and a float32 deviation. Products keep what they
    # multiply: both norms' results, the attention's, the feed-forward's. SDPA keeps queries, keys, values and, sample
    # by sample, results; SwiGLU the gate, its activation and the other factor.
    norms = 4 * 4 * h + 2 * 4
    attention = queries + 2 * keys + (1 if bfloat16 else 2) * queries
    return norms + size * (2 * h + attention + 4 * f) + normaliser
