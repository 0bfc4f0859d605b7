"""A model on accelerators that serve it together: how it is cut, in which precision, under which kind of engine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elasmo.simulate.accelerator import BYTES, Accelerator, dtype_name
from elasmo.simulate.engine_kind import TRAITS, EngineKind
from elasmo.simulate.model import Model

WEIGHT_ONLY = {"mxfp4": 4.25 / 8, "nvfp4": 4.5 / 8, "int4": 4.25 / 8, "awq": 4.25 / 8, "gptq": 4.25 / 8}
"""Bytes of a weight, scales included, of formats that are multiplied in 16 bits."""


class DeploymentError(ValueError):
    """A deployment that cannot be, in a sentence that says why and what would do."""


@dataclass(frozen=True)
class Precision:
    """What is multiplied in which format, and what takes how many bytes.

    Attributes:
        dtype: of the arithmetic of the products.
        dense_bytes, expert_bytes: of a weight outside and inside of routed experts.
        cache_bytes: of a number of the KV cache.
    """

    dtype: str = "bf16"
    dense_bytes: float = 2.0
    expert_bytes: float = 2.0
    cache_bytes: float = 2.0


def precision(weights: str, cache: str = "") -> Precision:
    """`bfloat16`, `fp8`, `mxfp4`, ... and the KV cache's format, 16 bits by default.

    Raises:
        HardwareError: a format that is not known.
    """
    kept = BYTES[dtype_name(cache)] if cache else 2.0
    plain = re.sub(r"[^a-z0-9]", "", weights.lower())
    for word, size in WEIGHT_ONLY.items():
        if plain.startswith(word):  # published models in MXFP4 keep attention and embeddings in 16 bits
            return Precision("bf16", 2.0 if word == "mxfp4" else size, size, kept)
    kind = dtype_name(weights)
    return Precision(kind, BYTES[kind], BYTES[kind], kept)


@dataclass(frozen=True)
class Deployment:
    """One replica.

    Attributes:
        tp: ranks that share each layer's attention and dense products.
        pp: stages of layers.
        dp: replicas of attention that share one set of experts.
        expert_parallel: experts whole on ranks, else each cut across them.
        step_tokens: prompt tokens that a step takes at most (chunked prefill).
    """

    model: Model
    chip: Accelerator
    engine: EngineKind = "graphed"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False
    precision: Precision = Precision()
    step_tokens: int = 8192

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp"):
            if getattr(self, name) < 1:
                raise DeploymentError(f"{name}={getattr(self, name)} must be at least 1.")
        self.chip.peak(self.precision.dtype)
        heads = {layer.attention.heads for layer in self.model.layers}
        if any(each % self.tp for each in heads):
            fits = [size for size in range(1, 129) if all(each % size == 0 for each in heads)]
            near = min(fits, key=lambda size: (abs(size - self.tp), size))
            raise DeploymentError(
                f"tp={self.tp} must divide the model's {'/'.join(map(str, sorted(heads)))} attention heads; "
                f"the nearest that does is tp={near}."
            )
        if self.pp > self.model.depth:
            raise DeploymentError(f"pp={self.pp} exceeds the model's {self.model.depth} layers.")
        if self.crosses and not self.chip.scaleout_bandwidth:
            raise DeploymentError(
                f"tp={self.tp} x dp={self.dp} exceeds the scale-up domain of {self.chip.name}, "
                f"{self.chip.scaleup_domain} accelerators, and its scale-out bandwidth is not known; use pp."
            )

    @property
    def accelerators(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def crosses(self) -> bool:
        """Whether the ranks that reduce together span more than one scale-up domain."""
        return self.tp * self.dp > self.chip.scaleup_domain

    @property
    def reduces_directly(self) -> bool:
        """Whether small all-reduces are one kernel over peer memory: the engine can, and the fabric lets it."""
        return TRAITS[self.engine].direct_reduce and self.chip.scaleup_kind != "pcie" and not self.crosses

    @property
    def weight_bytes(self) -> float:
        """Of the weights on the fullest accelerator; KV heads that tp repeats are neglected."""
        model, kept = self.model, self.precision
        experts = model.expert_parameters
        inner = model.parameters - model.embedding_parameters - experts
        spread = experts * kept.expert_bytes / (self.tp * self.dp * self.pp)
        return (
            spread
            + inner * kept.dense_bytes / (self.tp * self.pp)
            + model.embedding_parameters * 2.0 / self.tp / (1 if self.pp == 1 or model.tied else 2)
        )

    def cache_bytes(self, tokens: float) -> float:
        """Of the KV cache of a sequence of that length on one accelerator, which keeps a window's tokens only."""
        total = 0.0
        for layer in self.model.layers:
            attention = layer.attention
            share = 1 if attention.latent else min(self.tp, attention.kv_heads)
            total += attention.kv_width / share * min(tokens, attention.window or tokens)
        return total * self.precision.cache_bytes / self.pp

    @property
    def cache_bytes_per_token(self) -> float:
        """Of the KV cache on one accelerator while a sequence is within every window."""
        return self.cache_bytes(1.0)

    def cache_room(self, cache_share: float) -> float:
        """Bytes left for KV cache on one accelerator, when weights and cache may use that share of its memory.

        Raises:
            DeploymentError: the weights alone do not fit.
        """
        room = self.chip.memory * cache_share - self.weight_bytes
        if room <= 0:
            needed = self.weight_bytes / cache_share
            raise DeploymentError(
                f"The weights take {self.weight_bytes / 1e9:.1f} GB on each {self.chip.name}, which leaves "
                f"{self.chip.memory * cache_share / 1e9:.1f} GB for weights and KV cache; it lacks "
                f"{-room / 1e9:.1f} GB. Raise tp, use a narrower weight format, or accelerators of "
                f"{needed / (1 << 30):.0f} GiB."
            )
        return room

    def cache_tokens(self, cache_share: float) -> int:
        """Tokens whose keys and values fit, over all `dp` replicas; windows are not counted.

        Raises:
            DeploymentError: the weights alone do not fit.
        """
        return int(self.cache_room(cache_share) / self.cache_bytes_per_token) * self.dp
