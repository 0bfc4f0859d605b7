"""The measured constants of serving steps: few, global, by engine kind or generation; written by `fit_serving`.

None belongs to a model, a row or a source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files

from elasmo.simulate.engine_kind import TRAITS, EngineKind


@dataclass(frozen=True)
class ServingConstants:
    """What a step takes beyond its matrix products.

    Attributes:
        step_s: of the host between two steps: scheduling, sampling, input tensors; by engine kind.
        sequence_s: of the host for each running sequence in a step; by engine kind.
        gap_s: from one kernel to the next on the device.
        launch_s: of the host to launch a kernel, which hides behind the device or holds it up; by engine kind.
        stream: share of memory bandwidth of what is neither product nor attention, unfused passes counted as
            slowness; by engine kind.
        expert: time of a grouped product over experts, in times of the same work as plain products.
        routing: tokens of a step choose experts like this share of them would if they chose independently.
        cache_read: share of memory bandwidth at which decode attention reads the KV cache.
        core_attention: share of the matrix peak at which decode attention on ordinary cores computes.
        prefill_attention: share of the matrix peak of prefill attention.
        encoder: share of the matrix peak of a media encoder.
        direct_reduce_s, reduce_s: of a small all-reduce, in one kernel between two ranks (more take log2 of them as
            long) or by NCCL.
        link: share of the scale-up bandwidth of a large all-reduce.
        stall_s: of the host that a step meets on average, not in the middle of its distribution; by generation.
        idle, compute, memory, exponent: power as a share of the accelerator's: idle + compute x u^exponent +
            memory x v^exponent, where u and v are the shares of peak FLOP/s and of bandwidth in use.
        cache_share: of a device's memory, for weights and KV cache together.
    """

    step_s: Mapping[str, float] = field(default_factory=lambda: {"graphed": 1e-3})
    sequence_s: Mapping[str, float] = field(default_factory=lambda: {"graphed": 20e-6})
    launch_s: Mapping[str, float] = field(default_factory=lambda: {"eager": 30e-6})
    stream: Mapping[str, float] = field(default_factory=lambda: {"graphed": 0.6})
    gap_s: float = 6e-6
    expert: float = 1.1
    routing: float = 0.6
    cache_read: float = 0.85
    core_attention: float = 0.013
    prefill_attention: float = 0.4
    encoder: float = 0.4
    direct_reduce_s: float = 10e-6
    reduce_s: float = 36e-6
    link: float = 0.62
    stall_s: Mapping[str, float] = field(default_factory=dict)
    idle: float = 0.4
    compute: float = 0.8
    memory: float = 0.3
    exponent: float = 0.7
    cache_share: float = 0.92

    def of(self, name: str, kind: EngineKind) -> float:
        """A constant by engine kind: its own, else the mean of the kinds that do alike, else of all that were measured.

        Alike is what matters to the constant: the scheduler's language for `sequence_s`, fusion for `stream`. What a
        step costs whatever is in it is slack of an implementation: the least measured stands for one that was not.
        """
        table: Mapping[str, float] = getattr(self, name)
        if kind in table:
            return table[kind]
        if name == "step_s" and table:
            return min(table.values())
        trait = "fused" if name == "stream" else "python"
        alike = [value for key, value in table.items() if _trait(key, trait) == _trait(kind, trait)]
        chosen = alike or list(table.values())
        return sum(chosen) / len(chosen) if chosen else 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def having(self, **changes: object) -> ServingConstants:
        return replace(self, **changes)  # type: ignore[arg-type]


def _trait(kind: str, trait: str) -> bool:
    return bool(getattr(TRAITS[kind], trait))  # type: ignore[index]


def from_json(text: str) -> ServingConstants:
    raw = json.loads(text)
    return ServingConstants(**{each.name: raw[each.name] for each in fields(ServingConstants) if each.name in raw})


@cache
def default_constants() -> ServingConstants:
    """The constants that ship with the package."""
    return from_json(files("elasmo.simulate").joinpath("serving_constants.json").read_text())
