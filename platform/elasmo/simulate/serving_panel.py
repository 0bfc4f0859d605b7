"""Many cases at once: predictions of all of them under any constants in a few milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elasmo.simulate.serving_constants import ServingConstants
from elasmo.simulate.serving_rows import Case
from elasmo.simulate.serving_step import Array, concatenate, quantiles, seconds, stall_s, watts_share


class Panel:
    """Cases with their steps in one array, and the numbers that were measured of them."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = list(cases)
        self.wanted = [(number, name) for number, case in enumerate(self.cases) for name in case.measured]
        self.measured = np.array([self.cases[number].measured[name] for number, name in self.wanted])
        sizes = [len(case.weights) for case in self.cases]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        self.work = concatenate([case.steps for case in self.cases])
        keys = [
            (case.deployment.engine, case.deployment.reduces_directly, case.deployment.tp * case.deployment.dp)
            for case in self.cases
        ]
        owner = np.repeat(np.arange(len(self.cases)), sizes)
        self.groups = []
        for key in sorted(set(keys)):
            index = np.flatnonzero(np.array([keys[each] == key for each in owner]))
            self.groups.append((index, self.work.at(index), self.cases[keys.index(key)].deployment))
        self.styles = {
            style: [number for number, case in enumerate(self.cases) if case.style == style]
            for style in ("single", "static", "steady")
        }

    def times(self, constants: ServingConstants) -> Array:
        """Seconds of every step of every case."""
        out = np.empty(int(self.starts[-1]))
        for index, steps, example in self.groups:
            out[index] = seconds(steps, example, constants)
        return out

    def columns(self, constants: ServingConstants) -> dict[str, Array]:
        """What each case gives, by column of its table; an array [cases], not a number where it does not apply."""
        times = self.times(constants)
        made: dict[str, Array] = {}

        def put(name: str, members: list[int], values: Array) -> None:
            made.setdefault(name, np.full(len(self.cases), np.nan))[members] = values

        if single := self.styles["single"]:
            for name in ("prefill_ms", "decode_ms"):
                put(name, single, times[self.starts[single]] * 1e3)
        if static := self.styles["static"]:
            prompt, step = times[self.starts[static]], times[self.starts[static] + 1]
            steps = np.array([self.cases[number].weights[1] for number in static])
            batch = np.array([self.cases[number].sequences for number in static])
            put("ttft_ms", static, prompt * 1e3)
            put("tpot_ms", static, np.where(steps > 0, step * 1e3, np.nan))
            put("output_tok_s", static, batch * (steps + 1.0) / (prompt + steps * step))
        if steady := self.styles["steady"]:
            for name, values in self._steady(steady, times, constants).items():
                put(name, steady, values)
        return made

    def _steady(self, members: list[int], times: Array, constants: ServingConstants) -> dict[str, Array]:
        weights = self.cases[members[0]].weights
        index = self.starts[members][:, None] + np.arange(len(weights))
        spent = times[index]
        cuts = [self.cases[number].deployment for number in members]
        mean = spent @ weights + np.array([stall_s(cut, constants) for cut in cuts])
        rate = np.array([self.cases[number].sequences for number in members]) / mean
        p50, p90, p99 = quantiles(spent, weights, (0.5, 0.9, 0.99))
        count = np.array([cut.accelerators for cut in cuts])
        full = np.array([cut.chip.power_w or np.nan for cut in cuts])
        cap = np.array([cut.chip.power_cap_w or cut.chip.power_w or np.nan for cut in cuts])
        used = watts_share(self.work.compute_s[index] @ weights, self.work.memory_s[index] @ weights, mean, constants)
        watts = np.minimum(full * used, cap) * count
        return {
            "median_itl_ms": p50 * 1e3, "p90_itl_ms": p90 * 1e3, "p99_itl_ms": p99 * 1e3, "tpot_ms": mean * 1e3,
            "output_throughput_tokens_per_sec": rate, "output_tok_s": rate, "avg_power_watts": watts,
            "energy_per_token_joules": watts / rate,
        }  # fmt: skip

    def predicted(self, constants: ServingConstants) -> Array:
        """Of every measured number, in the order of `measured`."""
        made = self.columns(constants)
        return np.array([made[name][number] for number, name in self.wanted])
