"""Fits the operators' constants to published operator times (Vidur's profiles of A100, H100 and A40).

`python -m elasmo.simulate.fit_operators` prints what it found and how far off it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from elasmo.simulate.accelerator import accelerator
from elasmo.simulate.calibration import Calibration
from elasmo.simulate.operators import Operators
from elasmo.simulate.published import read_table


@dataclass(frozen=True)
class Timed:
    """A measured operator: its shape and its seconds."""

    hw: str
    kind: str
    rows: int
    columns: int
    inner: int
    seconds: float
    model: str


def timed_products() -> list[Timed]:
    """The four matrix products of each layer of the published profiles; fp16."""
    found = []
    for row in read_table("S03_vidur_op_times_a100_h100_a40"):
        tp, m, h, ffn = (int(row[key]) for key in ("tp", "num_tokens", "n_embd", "n_ffn"))
        heads, kv = int(row["n_head"]), int(row["n_kv_head"])
        gated = row["gated"] == "True"
        size = h // heads
        shapes = {
            "attn_pre_proj": ((heads // tp + 2 * max(1, kv // tp)) * size, h),
            "attn_post_proj": (h, heads // tp * size),
            "mlp_up_proj": ((2 if gated else 1) * ffn // tp, h),
            "mlp_down_proj": (h, ffn // tp),
        }
        for kind, (columns, inner) in shapes.items():
            text = row[f"{kind}_ms"]
            if text and float(text) > 0:
                found.append(Timed(row["hw"], kind, m, columns, inner, float(text) / 1e3, row["model"]))
    return found


def minimise(
    loss: Callable[[np.ndarray], float], start: Sequence[float], steps: Sequence[float], rounds: int = 60
) -> np.ndarray:
    """Pattern search (Hooke and Jeeves 1961): no derivatives, no surprises, the same answer every time."""
    point, width = np.array(start, float), np.array(steps, float)
    best = loss(point)
    for _ in range(rounds):
        moved = False
        for axis in range(len(point)):
            for sign in (1.0, -1.0):
                trial = point.copy()
                trial[axis] += sign * width[axis]
                value = loss(trial)
                if value < best:
                    point, best, moved = trial, value, True
                    break
        if not moved:
            width /= 2
            if (width < np.array(steps) / 200).all():
                break
    return point


def errors(calibration: Calibration, rows: Iterable[Timed]) -> np.ndarray:
    """log(predicted / measured) of each."""
    made: dict[str, Operators] = {}
    out = []
    for row in rows:
        chip = made.setdefault(row.hw, Operators(accelerator(row.hw), calibration))
        out.append(np.log(chip.gemm(row.rows, row.columns, row.inner, "fp16") / row.seconds))
    return np.array(out)


def fit_products(base: Calibration, rows: Sequence[Timed]) -> Calibration:
    """Matmul share, inner dimension, memory share and launch time of each generation that was measured."""
    for generation in sorted({accelerator(row.hw).generation for row in rows}):
        own = [row for row in rows if accelerator(row.hw).generation == generation]

        def made(x: np.ndarray, generation: str = generation, base: Calibration = base) -> Calibration:
            return base.having(
                matmul={**base.matmul, f"{generation}.bf16": float(x[0])},
                inner={**base.inner, generation: float(np.exp(x[1]))},
                memory={**base.memory, generation: float(x[2])},
                launch_s={**base.launch_s, generation: float(np.exp(x[3]))},
            )

        def loss(x: np.ndarray, own: Sequence[Timed] = own, made: Callable = made) -> float:
            if not 0.2 < x[0] < 1 or not 0.3 < x[2] < 1 or not -14 < x[3] < -10:
                return 1e9
            return float(np.abs(errors(made(x), own)).mean())

        base = made(minimise(loss, (0.8, np.log(256.0), 0.85, np.log(4e-6)), (0.08, 0.7, 0.08, 0.6)))
    return base


def main() -> None:
    rows = timed_products()
    start = Calibration(
        matmul={"other": 0.7}, inner={"other": 200.0}, memory={"other": 0.85}, launch_s={"other": 4e-6},
        attention={"other": 0.4},
    )  # fmt: skip
    found = fit_products(start, rows)
    print(found.to_json())
    off = errors(found, rows)
    for hw in sorted({row.hw for row in rows}):
        mine = np.abs(np.expm1(off[[row.hw == hw for row in rows]]))
        big = np.abs(np.expm1(off[[row.hw == hw and row.rows >= 1024 for row in rows]]))
        print(f"{hw}: n={len(mine)} median={np.median(mine):.3f} p90={np.quantile(mine, 0.9):.3f}; "
              f"1024 tokens and more: median={np.median(big):.3f} p90={np.quantile(big, 0.9):.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
