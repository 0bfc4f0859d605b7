"""What a rank counts for the run's figures: FLOPs of the samples it had, joules, and what its device can do."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from elasmo.config import Config
from elasmo.measure import energy
from elasmo.measure.flops import Load, ModelFlops
from elasmo.model.encoded import Encoded
from elasmo.simulate.accelerator import HardwareError, accelerator

PROBES = {"cpu": 1024, "cuda": 8192}
"""Sides of the square matrices that a peak is measured with."""
ROUNDS = 6
"""How often; the fastest counts."""


def load_of(sample: Encoded) -> Load:
    """What a sample asks of a model; its tokens are counted as they are, without padding."""
    return Load(
        tokens=len(sample.tokens),
        targets=sample.costs().target,
        images=len(sample.images),
        frames=tuple(len(clip) for clip in sample.audio),
        cells=len(sample.cell_fields),
    )


def trained_parameters(model: nn.Module) -> frozenset[str]:
    """Names of the parameters that have gradients."""
    return frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad)


class Meter:
    """Counts for one rank.

    Args:
        model: whole, before it is cut; which parameters are trained is read from it.
        reads_energy: whether this rank speaks for its node's or device's counter.
    """

    def __init__(self, config: Config, model: nn.Module, vocab: int, reads_energy: bool) -> None:
        train = config.train
        self._flops = ModelFlops(config.model, vocab, trained_parameters(model), train.lora, train.layout.recompute)
        self.counter = _counter() if reads_energy else None

    def flops(self, samples: Iterable[Encoded]) -> tuple[float, float]:
        """(model FLOPs, hardware FLOPs) of training on samples."""
        return self._flops.step(map(load_of, samples))

    def joules(self) -> float:
        """Since the last call; 0 without a counter."""
        return self.counter.since() if self.counter is not None else 0.0


def device_facts(config: Config) -> dict[str, Any]:
    """What one device of this rank can do and costs, for the run log; what is not known is left out."""
    settings, dtype = config.train.meter, config.train.dtype
    counter = _counter()
    facts: dict[str, Any] = {
        "name": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "usd_per_device_hour": settings.usd_per_device_hour,
        "watts_per_device": settings.watts_per_device,
        "energy_source": counter.source if counter is not None else None,
    }
    peak, source = _peak(config, facts["name"], dtype)
    facts |= {"peak_flops": peak, "peak_source": source}
    return {name: value for name, value in facts.items() if value is not None}


def _peak(config: Config, name: str, dtype: str) -> tuple[float | None, str | None]:
    if config.train.meter.peak_tflops is not None:
        return config.train.meter.peak_tflops * 1e12, "configured (train.meter.peak_tflops)"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    published = published_peak(name, dtype) if device == "cuda" else None
    if published is not None:
        return published
    where = name if device == "cuda" else f"{torch.get_num_threads()} threads"
    return measured_peak(dtype, device), f"measured: {PROBES[device]}³ {dtype} product, {where}, best of {ROUNDS}"


def published_peak(name: str, dtype: str) -> tuple[float, str] | None:
    """FLOP/s of a GPU, as CUDA names it, and where the number is from; None for a slice (MIG) or an unknown chip."""
    try:
        chip = accelerator(name)
        return None if "MIG" in name.split() else (chip.peak(dtype), f"{chip.name}, dense {dtype}, published")
    except HardwareError:
        return None


def measured_peak(dtype: str, device: str = "cpu") -> float:
    """FLOP/s of the fastest of a few square products on this device."""
    side = PROBES[device]
    left, right = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2))
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        torch.mm(left, right)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * side**3 / best


def _counter() -> energy.Counter | None:
    if not torch.cuda.is_available():
        return energy.rapl()
    # A slice's energy is not counted apart from its GPU's.
    sliced = "MIG" in torch.cuda.get_device_name().split()
    return None if sliced else energy.nvml(f"GPU-{torch.cuda.get_device_properties().uuid}")
