"""Fits the training model's global constants to published steps; `leave_out` refits without a source to be scored.

`python -m elasmo.simulate.fit_training` writes calibration.json. Operators' constants come from `fit_operators`; here
are those that single operators do not show: attention, overlap, host, lasting load, links under load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elasmo.simulate.calibration import OTHER, Calibration, default_calibration
from elasmo.simulate.fit_operators import fit_products, timed_products
from elasmo.simulate.published import read_table, scored
from elasmo.simulate.row import Reading, measured_seconds, predict_row, read_row
from elasmo.simulate.training import simulate_step

TABLES = (
    "T01_megatron2021_table1_a100", "T01b_megatron_jan2021_a100", "T03_korthikanti2022_table5_a100",
    "T05_mpt_fsdp_a100_h100", "T06_torchtitan_llama3_h100_h200", "T07_megatron_bridge_h100_b200_gb200_gb300",
    "T12_maxtext_tpu_v4_v5e_v5p", "T16_h100_ablations_memory_recompute_overlap",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A published step that a reading describes."""

    source: str
    row: dict[str, str]
    reading: Reading
    seconds: float

    @property
    def experts(self) -> bool:
        return self.reading.model.has_experts

    @property
    def generation(self) -> str:
        return self.reading.cluster.groups[0].chip.generation


def measured_steps(rows: Iterable[dict[str, str]]) -> list[Measured]:
    """Rows that may be scored, with time, shape and layout."""
    found = []
    for row in rows:
        try:
            seconds, reading = measured_seconds(row), read_row(row)
        except ValueError:
            continue
        if scored(row) and seconds:
            found.append(Measured(row.get("source_id") or "unnamed", row, reading, seconds))
    return found


def published_steps() -> list[Measured]:
    return measured_steps(row for table in TABLES for row in read_table(table))


@dataclass(frozen=True)
class Knob:
    """A constant and how far a first step of the search goes, in its logarithm."""

    name: str
    key: str | None = None
    step: float = 0.15
    low: float = 1e-6
    high: float = 1e3


KNOBS = (
    Knob("attention", "ampere.1", high=0.8), Knob("attention", "ampere.2", high=0.8),
    Knob("attention", "hopper.1", high=0.8), Knob("attention", "hopper.2", high=0.8),
    Knob("attention", "hopper.3", high=0.85), Knob("attention", "blackwell.3", high=0.85),
    Knob("attention", "tpu.3", high=0.8), Knob("attention_ramp", None, 0.4, 1, 2000),
    Knob("matmul", "tpu.bf16", 0.15, 0.3, 0.97), Knob("matmul", "hopper.fp8", 0.1, 0.3, 0.9),
    Knob("matmul", "blackwell.fp8", 0.1, 0.3, 0.9), Knob("matmul", "blackwell.bf16", 0.1, 0.3, 0.9),
    Knob("demand", "ampere", 0.1, 2 / 3, 2), Knob("demand", "hopper", 0.15, 2 / 3, 2),
    Knob("demand", "blackwell", 0.15, 2 / 3, 2), Knob("eager", None, 0.2, 1, 4),
    Knob("contention", OTHER, 0.1, 0.01, 0.6),
    Knob("overlap_tp", None, 0.3, 0.05, 1), Knob("straggle", None, 0.5, 1e-4, 0.03),
    Knob("step_s", None, 0.5, 1e-4, 0.2), Knob("micro_batch_s", None, 0.5, 1e-4, 0.02),
    Knob("grouped", None, 0.2, 0.2, 1), Knob("expert_host_s", None, 0.3, 1e-4, 0.03),
    Knob("layer_host_s", None, 0.5, 1e-5, 0.005), Knob("network", OTHER, 0.2, 0.2, 1.0),
)  # fmt: skip


def value(calibration: Calibration, knob: Knob) -> float:
    held = getattr(calibration, knob.name)
    if knob.key is None:
        return float(held)
    if knob.key in held:
        return float(held[knob.key])
    if knob.name == "matmul":
        return calibration.matmul_share(*knob.key.split("."))
    return float(held[OTHER])


def turned(calibration: Calibration, knobs: Sequence[Knob], logs: np.ndarray) -> Calibration:
    """The calibration with the knobs at exp(logs)."""
    changes: dict[str, object] = {}
    for knob, log in zip(knobs, logs, strict=True):
        number = float(math.exp(log))
        if knob.key is None:
            changes[knob.name] = number
        else:
            changes[knob.name] = {**changes.get(knob.name, getattr(calibration, knob.name)), knob.key: number}  # type: ignore[dict-item]
    return calibration.having(**changes)


def log_errors(calibration: Calibration, rows: Sequence[tuple[Measured, int]]) -> np.ndarray:
    """log(predicted / measured), each row with the plan that was chosen for it."""
    return np.array(
        [
            math.log(
                simulate_step(each.reading.model, each.reading.plans[plan], each.reading.cluster, calibration).seconds
                / each.seconds
            )
            for each, plan in rows
        ]
    )


def choose(rows: Sequence[Measured], calibration: Calibration) -> list[tuple[Measured, int]]:
    """Each row with the number of the plan that the model takes for it."""
    return [(each, each.reading.plans.index(predict_row(each.row, calibration).plan)) for each in rows]


def weights(rows: Sequence[Measured]) -> np.ndarray:
    """Sources weigh as the fourth root of their rows, so that none drowns the others; a shape that repeats shares."""
    keys = [
        (each.source, *(each.row.get(key, "") for key in ("hw", "n_gpu", "precision", "model", "seq_len", "mbs", "ep")))
        for each in rows
    ]
    counts = {key: keys.count(key) for key in set(keys)}
    own = np.array([1.0 / counts[key] for key in keys])
    sums = {
        each.source: sum(w for w, other in zip(own, rows, strict=True) if other.source == each.source) for each in rows
    }
    return np.array([w / sums[each.source] ** 0.75 for w, each in zip(own, rows, strict=True)])


@dataclass(frozen=True)
class Slopes:
    """How log errors of rows follow the knobs' logarithms around a point: errors [rows], slopes [rows, knobs]."""

    at: np.ndarray
    errors: np.ndarray
    slopes: np.ndarray


def slopes(base: Calibration, rows: Sequence[tuple[Measured, int]], knobs: Sequence[Knob], at: np.ndarray) -> Slopes:
    """By differences, one evaluation of all rows a knob."""
    here = log_errors(turned(base, knobs, at), rows)
    columns = []
    for number in range(len(knobs)):
        moved = at.copy()
        moved[number] += 0.05
        columns.append((log_errors(turned(base, knobs, moved), rows) - here) / 0.05)
    return Slopes(at, here, np.stack(columns, axis=1))


def solve(
    found: Slopes, weight: np.ndarray, prior: np.ndarray, knobs: Sequence[Knob], reach: float = 0.5
) -> np.ndarray:  # fmt: skip
    """Knobs that make the weighted mean of |error| least where it is linear, held to their prior by a light spring.

    Reweighted least squares (Schlossmacher 1973); errors beyond 0.5 are outliers and pull no harder.
    """
    point = found.at.copy()
    low = np.maximum(found.at - reach, [math.log(knob.low) for knob in knobs])
    high = np.minimum(found.at + reach, [math.log(knob.high) for knob in knobs])
    scale = np.array([knob.step for knob in knobs])
    weight = weight / weight.sum()
    for _ in range(60):
        off = found.errors + found.slopes @ (point - found.at)
        pull = weight / np.maximum(np.abs(off), 0.01) * np.where(np.abs(off) > 0.5, 0.5, 1.0)
        left = found.slopes.T @ (pull[:, None] * found.slopes) + np.diag(SPRING / scale**2)
        right = found.slopes.T @ (pull * (found.slopes @ found.at - found.errors)) + SPRING / scale**2 * prior
        point = np.clip(0.5 * point + 0.5 * np.linalg.solve(left, right), low, high)
    return point


SPRING = 0.0004
"""Weight of the prior: a knob one step away from it costs as much as a few thousandths of error."""


def prior(operators: Calibration | None = None) -> Calibration:
    """Constants before any training step was seen: operators measured alone, kernels' and links' published rates.

    Attention on A100: FlashAttention reaches 25 to 40 % of the peak, FlashAttention 2 50 to 73 % (Dao 2023,
    arXiv:2307.08691, abstract). On H100 version 2 reaches 35 % and version 3 up to 75 % (Shah et al. 2024,
    arXiv:2407.08608, abstract), of which 0.7 is taken at the lengths of training, and version 1 as far behind version 2
    as on A100. The upper ends are those of long sequences, forward, which is what the constant means.
    TPU products: XLA's on a v5e at 8192 cubed (JAX documentation, Pallas TPU matmul). Links: Vidur's all-reduces.
    """
    shipped = operators if operators is not None else default_calibration()
    keep = {name: getattr(shipped, name) for name in ("inner", "memory", "launch_s")}
    timed = ("ampere.bf16", "hopper.bf16", "ampere-ga102.bf16", OTHER)
    matmul = {key: share for key, share in shipped.matmul.items() if key in timed}
    return Calibration(
        matmul={**matmul, "tpu.bf16": 0.92}, **keep,
        attention={OTHER: 0.5, "ampere.1": 0.4, "ampere.2": 0.73, "hopper.1": 0.19, "hopper.2": 0.35, "hopper.3": 0.7},
        scaleup={OTHER: 0.8, "ampere": 0.72, "hopper": 0.88}, network={OTHER: 0.75}, latency={OTHER: 1.0},
        demand={OTHER: 0.85},
    )  # fmt: skip


def fit(
    rows: Sequence[Measured], base: Calibration | None = None, knobs: Sequence[Knob] = KNOBS, rounds: int = 4
) -> tuple[Calibration, Slopes, list]:  # fmt: skip
    """Constants of all rows, the slopes at the last point, and the plan of each row."""
    base = base or prior()
    first = np.array([math.log(value(base, knob)) for knob in knobs])
    point, weight = first, weights(rows)
    best: tuple[float, Slopes, list] | None = None
    for number in range(rounds):
        chosen = choose(rows, turned(base, knobs, point))
        found = slopes(base, chosen, knobs, point)
        off = loss(found.errors, weight)
        if best is None or off < best[0]:
            best = off, found, chosen
        # Shorter steps towards the end, from the best point so far: the kinks of |error| make long ones overshoot.
        point = solve(best[1], weight, first, knobs, reach=0.5 / 2**number)
    if best is None:
        raise ValueError(f"rounds={rounds} must be at least 1.")
    return turned(base, knobs, best[1].at), best[1], best[2]


def loss(errors: np.ndarray, weight: np.ndarray) -> float:
    """Weighted mean of |log error|, no row beyond 0.5."""
    return float((np.minimum(np.abs(errors), 0.5) * weight).sum() / weight.sum())


def leave_out(
    rows: Sequence[Measured], left: Sequence[bool], found: Slopes, chosen: list, knobs: Sequence[Knob] = KNOBS
) -> Calibration:
    """Constants fitted without the rows that are left out; only how errors bend with the knobs is taken from all.

    The plan of a kept row is the one that all constants chose for it; a left-out row's plan is chosen anew when it is
    predicted.
    """
    base = prior()
    first = np.array([math.log(value(base, knob)) for knob in knobs])
    kept = [number for number, out in enumerate(left) if not out]
    mine = [chosen[number] for number in kept]
    weight = weights([rows[number] for number in kept])
    near = Slopes(found.at, found.errors[kept], found.slopes[kept])
    # A knob that no kept row feels has only its prior.
    blind = np.abs(near.slopes).sum(axis=0) < 1e-9
    point = np.where(blind, first, found.at)
    best, least = point, math.inf
    for reach in (1.0, 0.3, 0.0):
        errors = log_errors(turned(base, knobs, point), mine)
        off = loss(errors, weight)
        if off < least:
            best, least = point, off
        if reach:
            point = solve(Slopes(point, errors, near.slopes), weight, first, knobs, reach)
            point = np.where(blind, first, point)
    return turned(base, knobs, best)


def main() -> None:
    """Writes the constants that ship."""
    found, _, _ = fit(published_steps(), prior(fit_products(prior(), timed_products())))
    Path(__file__).with_name("calibration.json").write_text(found.to_json())
    print(found.to_json())


if __name__ == "__main__":
    main()
