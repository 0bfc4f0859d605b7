"""Fits the serving constants to published rows: times of steps first, then power.

`python -m elasmo.simulate.fit_serving` prints the constants that ship with the package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elasmo.simulate.published import read_table, scored
from elasmo.simulate.serving_constants import ServingConstants
from elasmo.simulate.serving_panel import Panel
from elasmo.simulate.serving_rows import Case, published_cases

LATENCY = ("median_itl_ms", "output_throughput_tokens_per_sec", "output_tok_s", "ttft_ms", "prefill_ms", "decode_ms")
POWER = ("energy_per_token_joules",)
ROBUST = 0.1
"""Relative error beyond which a point pulls less and less: rows have noise of that size, and some have stalls."""


@dataclass(frozen=True)
class Free:
    """A constant that is fitted: its field, its key where it is a table, and its bounds."""

    name: str
    low: float
    high: float
    key: str = ""

    def read(self, constants: ServingConstants) -> float:
        value = getattr(constants, self.name)
        return float(value.get(self.key, self.low)) if self.key else float(value)

    def write(self, constants: ServingConstants, value: float) -> ServingConstants:
        if not self.key:
            return constants.having(**{self.name: value})
        return constants.having(**{self.name: {**getattr(constants, self.name), self.key: value}})


def free_times(cases: Sequence[Case]) -> list[Free]:
    """The constants of time that the cases say something about."""
    kinds = {case.deployment.engine for case in cases}
    found = [Free("cache_read", 0.4, 0.95), Free("prefill_attention", 0.1, 0.7), Free("gap_s", 1e-6, 2e-5)]
    if any(case.deployment.model.has_experts for case in cases):
        found.append(Free("expert", 0.8, 2.0))
    if kinds & {"compiled", "native", "eager"}:
        found.append(Free("core_attention", 0.003, 0.2))
    if any(case.deployment.tp > 1 and case.deployment.engine == "graphed" for case in cases):
        found.append(Free("direct_reduce_s", 5e-6, 40e-6))
    if any(case.deployment.tp > 1 and case.deployment.engine != "graphed" for case in cases):
        found.append(Free("reduce_s", 10e-6, 80e-6))
    for kind in sorted(kinds):
        found += [Free("step_s", 2e-4, 2e-2, kind), Free("sequence_s", 1e-6, 2e-4, kind)]
        found.append(Free("stream", 0.03, 0.9, kind))
    if "eager" in kinds:
        found.append(Free("launch_s", 1e-6, 1e-4, "eager"))
    for generation in sorted({case.deployment.chip.generation for case in cases}):
        if sum(case.style == "steady" and case.deployment.chip.generation == generation for case in cases) >= 20:
            found.append(Free("stall_s", 1e-5, 1e-2, generation))
    return found


FREE_POWER = [
    Free("idle", 0.12, 0.6),
    Free("compute", 0.01, 3.0),
    Free("memory", 0.01, 2.0),
    Free("exponent", 0.3, 1.2),
]


def start() -> ServingConstants:
    """Where every fit starts: orders of magnitude from how engines are built, and what collectives measured."""
    latency_s, link = reduce_constants()
    return ServingConstants(
        step_s={}, sequence_s={}, launch_s={}, stream={}, stall_s={}, reduce_s=latency_s, link=link,
        cache_share=cache_share(),
    )  # fmt: skip


GUESS = {"step_s": 1e-3, "sequence_s": 20e-6, "stream": 0.5, "launch_s": 3e-5, "stall_s": 5e-4}


def reduce_constants() -> tuple[float, float]:
    """Latency of a small all-reduce in a scale-up domain, and the share of its bandwidth that a large one reaches."""
    rows = [
        row
        for row in read_table("S04_vidur_collectives_a100_h100")
        if row["collective"] == "all_reduce" and row["node"].endswith("dgx")
        and row["devices_per_node"] == row["num_workers"] and float(row["median_ms"]) > 0
    ]  # fmt: skip
    small = [float(row["median_ms"]) / 1e3 for row in rows if float(row["size_bytes"]) <= 1 << 18]
    links = {"a100_dgx": 300e9, "h100_dgx": 450e9}
    large = [
        2 * (int(row["num_workers"]) - 1) / int(row["num_workers"]) * float(row["size_bytes"])
        / (float(row["median_ms"]) / 1e3 - float(np.median(small))) / links[row["node"]]
        for row in rows
        if float(row["size_bytes"]) >= 1 << 24
    ]  # fmt: skip
    return float(np.median(small)), float(np.median(large))


def cache_share(leave_out: str = "") -> float:
    """Share of device memory for weights and cache, from published capacities of a KV cache (S02b)."""
    from elasmo.simulate.accelerator import accelerator
    from elasmo.simulate.deployment import Deployment
    from elasmo.simulate.served_model import served_model

    chip, shares = accelerator("A100-SXM-80GB"), []
    for row in read_table("S02b_distserve_kv_capacity_a100"):
        if not scored(row) or row["model"] == leave_out:
            continue
        cut = Deployment(served_model(row["model"]).model, chip, "native", 1)
        ranks = int(row["tp"]) * int(row["pp"])
        held = cut.weight_bytes + float(row["max_num_tokens"]) * cut.cache_bytes_per_token
        shares.append(held / ranks / chip.memory)
    return float(np.median(shares))


def levenberg(
    residuals: Callable[[np.ndarray], np.ndarray], x: np.ndarray, low: np.ndarray, high: np.ndarray, rounds: int = 30
) -> np.ndarray:
    """Least squares in bounds (Levenberg 1944, Marquardt 1963) under Cauchy's loss, narrowed to ROBUST in stages.

    A wide loss has one minimum; each narrower one starts from the last, so that outliers fade instead of trapping it.
    """
    x = np.clip(x, low, high)
    for width in (8 * ROBUST, 4 * ROBUST, 2 * ROBUST, ROBUST):
        x = _descend(residuals, x, low, high, width, rounds)
    return x


def _descend(
    residuals: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    width: float,
    rounds: int,
) -> np.ndarray:
    def loss(r: np.ndarray) -> float:
        return float(np.log1p((r / width) ** 2).sum())

    now = residuals(x)
    best, damping, step = loss(now), 1e-2, 1e-3
    for _ in range(rounds):
        slopes = np.empty((len(now), len(x)))
        for axis in range(len(x)):
            moved = x.copy()
            delta = step if x[axis] + step <= high[axis] else -step
            moved[axis] += delta
            slopes[:, axis] = (residuals(moved) - now) / delta
        pull = 1.0 / (1.0 + (now / width) ** 2)
        slope = slopes.T @ (now * pull)
        # A constant at its bound that wants to go further stays there, or its step would spoil the others'.
        free = ~(((x <= low + 1e-9) & (slope > 0)) | ((x >= high - 1e-9) & (slope < 0)))
        kept = slopes[:, free]
        square = kept.T @ (kept * pull[:, None])
        before = best
        for _ in range(8):
            move = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), slope[free])
            trial = x.copy()
            trial[free] = np.clip(x[free] - move, low[free], high[free])
            value = residuals(trial)
            if loss(value) < best:
                x, now, best, damping = trial, value, loss(value), damping / 5
                break
            damping *= 4
        if before - best < 1e-4 * best:
            break
    return x


def fit(
    cases: Sequence[Case], base: ServingConstants | None = None, guess: ServingConstants | None = None
) -> ServingConstants:
    """All constants of time and power from these cases; what they say nothing about stays at its start.

    `guess` is where the search begins for what they do say something about.
    """
    found = _fit(cases, base or start(), free_times(cases), LATENCY, guess)
    powered = [case for case in cases if "energy_per_token_joules" in case.measured]
    return _fit(powered, found, FREE_POWER, POWER, guess) if powered else found


def _fit(
    cases: Sequence[Case],
    base: ServingConstants,
    free: Sequence[Free],
    columns: Sequence[str],
    guess: ServingConstants | None = None,
) -> ServingConstants:
    wanted = [
        replace(case, measured={name: value for name, value in case.measured.items() if name in columns})
        for case in cases
    ]
    panel = Panel([case for case in wanted if case.measured])
    for each in free:
        if each.key and each.key not in getattr(base, each.name):
            base = each.write(base, GUESS[each.name])
    counts = Counter((case.source.split()[0], name) for case in panel.cases for name in case.measured)
    total = max(counts.values())

    def made(x: np.ndarray) -> ServingConstants:
        constants = base
        for each, value in zip(free, np.exp(x), strict=True):
            constants = each.write(constants, float(value))
        return constants

    weight = np.array(
        [(total / counts[panel.cases[number].source.split()[0], name]) ** 0.25 for number, name in panel.wanted]
    )

    def residuals(x: np.ndarray) -> np.ndarray:
        off: np.ndarray = np.log(panel.predicted(made(x)) / panel.measured) * weight
        return off

    low, high = (np.log([getattr(each, side) for each in free]) for side in ("low", "high"))
    first = np.log([each.read(guess or base) for each in free])
    return made(levenberg(residuals, first, low, high))


def main() -> None:
    print(fit(published_cases(start())).to_json(), end="")


if __name__ == "__main__":
    main()
