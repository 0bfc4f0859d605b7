"""The measured constants of the cost model: few, global, by hardware generation and dtype, and written by `fit`.

Each says what it is and from which published rows it comes. None belongs to a model, a row or a source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files

from elasmo.simulate.accelerator import dtype_name
from elasmo.simulate.published import optional_number, read_table, scored

OTHER = "other"
BY_GENERATION = (
    "matmul", "inner", "memory", "launch_s", "attention", "scaleup", "network", "latency", "demand", "contention",
)  # fmt: skip
"""Key of a generation that was not measured."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Constants of operators, by generation where hardware differs.

    Attributes:
        matmul: share of the peak that large products sustain, by `generation.dtype`.
        inner: inner dimension at which a product has half of that, of its fill and drain.
        memory: share of the memory bandwidth that streaming kernels reach.
        launch_s: time of a kernel that does nothing, launch to launch.
        attention: share of the peak that fused attention reaches on long sequences, forward, by
            `generation.version` of the kernels: FlashAttention 1, 2, or 3 for those written for the generation.
        attention_backward: of that, in the backward pass.
        attention_ramp: keys at which attention has half of its share.
        scaleup, network: share of the links' bandwidth that large collectives reach.
        latency: times the fabric's latency that a collective takes at least.
        eager: times the memory traffic of fused kernels that a pass of its own for every operator has.
        overlap_tp: share of tensor-parallel communication that shows when it runs beside products.
        contention: share of hidden communication that shows, since it takes cores and bandwidth from compute;
            less where engines of their own move data.
        optimizer_bytes: bytes that an Adam step moves for a parameter with its float32 state.
        step_s: fixed time of a step: host, data hand-over, loss, clipping. micro_batch_s: likewise of a micro-batch.
        demand: dynamic power of products at full clock over the design power; above 2/3 lasting load slows the clock.
        grouped: share of a product's rate that experts' grouped products reach.
        layer_host_s, expert_host_s: seconds that the host needs to launch a layer's passes, without and with experts;
            the accelerator waits where it is done sooner.
        straggle: relative time that is lost for each doubling of the ranks beyond a scale-up domain.
    """

    matmul: Mapping[str, float] = field(default_factory=dict)
    inner: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    launch_s: Mapping[str, float] = field(default_factory=dict)
    attention: Mapping[str, float] = field(default_factory=dict)
    attention_backward: float = 0.8
    attention_ramp: float = 256.0
    scaleup: Mapping[str, float] = field(default_factory=lambda: {OTHER: 0.75})
    network: Mapping[str, float] = field(default_factory=lambda: {OTHER: 0.75})
    latency: Mapping[str, float] = field(default_factory=lambda: {OTHER: 1.0})
    eager: float = 1.8
    overlap_tp: float = 0.4
    contention: Mapping[str, float] = field(default_factory=lambda: {OTHER: 0.3, "tpu": 0.1})
    optimizer_bytes: float = 34.0
    step_s: float = 0.01
    micro_batch_s: float = 0.002
    demand: Mapping[str, float] = field(default_factory=lambda: {OTHER: 0.8})
    grouped: float = 0.8
    layer_host_s: float = 0.0005
    expert_host_s: float = 0.005
    straggle: float = 0.003

    def __post_init__(self) -> None:
        for name in BY_GENERATION:
            if OTHER not in getattr(self, name):
                raise ValueError(f"calibration.{name} has no entry {OTHER!r} for hardware that was not measured.")

    def matmul_share(self, generation: str, dtype: str) -> float:
        """Share of the peak: measured under sustained load, else what the best published shape reached, scaled.

        The scale is the mean ratio of sustained to best shape where both were measured.
        """
        kind = dtype_name(dtype)
        for key in (f"{generation}.{kind}", f"{generation}.{'bf16' if kind == 'fp16' else kind}"):
            if key in self.matmul:
                return self.matmul[key]
        best = best_shapes()
        ratios = [value / best[key] for key, value in self.matmul.items() if key in best]
        scale = sum(ratios) / len(ratios) if ratios else 0.9
        for key in (f"{generation}.{kind}", f"{generation}.bf16"):
            if key in best:
                return best[key] * scale
        return self.matmul[OTHER]

    def attention_share(self, generation: str, version: int) -> float:
        """Share of the peak of fused attention: of this version, else of the next older, else newer, else other."""
        order = (*range(version, 0, -1), *range(version + 1, 4))
        keys = (f"{generation}.{number}" for number in order)
        return next((self.attention[key] for key in keys if key in self.attention), self.attention[OTHER])

    def of(self, name: str, generation: str) -> float:
        table: Mapping[str, float] = getattr(self, name)
        return table.get(generation, table[OTHER])

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def having(self, **changes: object) -> Calibration:
        return replace(self, **changes)  # type: ignore[arg-type]


def from_json(text: str) -> Calibration:
    raw = json.loads(text)
    return Calibration(**{each.name: raw[each.name] for each in fields(Calibration) if each.name in raw})


@cache
def default_calibration() -> Calibration:
    """The constants that ship with the package."""
    return from_json(files("elasmo.simulate").joinpath("calibration.json").read_text())


@cache
def best_shapes() -> dict[str, float]:
    """Share of the peak that the best published matrix product reaches, by `generation.dtype`; the mean over chips."""
    words = {"A100": "ampere", "H100": "hopper", "H200": "hopper", "GH200": "hopper", "B200": "blackwell",
             "B300": "blackwell", "GB200": "blackwell", "MI300X": "cdna3", "MI325X": "cdna3", "MI355X": "cdna4",
             "2": "gaudi2", "3": "gaudi3"}  # fmt: skip
    found: dict[str, list[float]] = {}
    for row in read_table("H02_max_achievable_matmul"):
        share = optional_number(row["efficiency_pct"])
        generation = words.get(row["accelerator"].split()[-1]) or words.get(row["accelerator"].split()[1])
        if scored(row) and share is not None and generation is not None:
            found.setdefault(f"{generation}.{dtype_name(row['dtype'])}", []).append(share / 100)
    return {key: sum(shares) / len(shares) for key, shares in found.items()}
