"""Times of steps of one deployment in microseconds of computing: `seconds(work(...))` read from a table.

Products depend on how many tokens are in a step, attention on how far they look back; the first is tabulated, the
second is linear.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from elasmo.simulate.deployment import Deployment
from elasmo.simulate.engine_kind import TRAITS
from elasmo.simulate.serving_constants import ServingConstants
from elasmo.simulate.serving_step import BLEND, HOST_BLEND, Batch, seconds, stall_s, watts_share, work


class StepClock:
    """Seconds, and energy, of any step of a deployment."""

    def __init__(self, deployment: Deployment, constants: ServingConstants) -> None:
        self.deployment, self.constants = deployment, constants
        top = max(deployment.step_tokens, 2) * 2
        grid = np.unique(np.rint(np.concatenate([np.arange(1, 33), np.geomspace(32, top, 96)]))).astype(float)
        self._grid = [float(each) for each in grid]
        c, kind = constants, deployment.engine
        done = work(deployment, Batch(prefill=grid, seen=0.0, logits=1.0), c.routing)
        self._base = [float(each) for each in seconds(done, deployment, c)]
        self._compute = [float(each) for each in done.compute_s]
        self._memory = [float(each) for each in done.memory_s]
        rate = c.prefill_attention if TRAITS[kind].flash_decoding else c.core_attention
        self._rate = rate
        self._launched = float(done.kernels[0]) * c.launch_s.get(kind, 0.0)
        self._host = c.of("step_s", kind)
        self._sequence = c.of("sequence_s", kind) / deployment.pp
        one = work(deployment, Batch(decode=np.full(2, 1.0), context=np.array([0.0, 1.0])), c.routing)
        self._windows = sorted({layer.attention.window or 0 for layer in deployment.model.layers})
        self._reads = [self._slopes(window) for window in self._windows]
        self._answer = float(one.cache_read_s[0])
        self._logits = self._logit_slope()
        ahead = work(deployment, Batch(prefill=np.full(2, 1.0), seen=np.array([0.0, 1.0])), c.routing)
        self._pair = float(np.diff(ahead.prefill_compute_s)[0]) / c.prefill_attention
        self._pair_compute = float(np.diff(ahead.compute_s)[0])
        media = work(deployment, Batch(prefill=np.full(2, 1.0), media=np.array([0.0, 1.0])), c.routing)
        self._medium = float(np.diff(media.encoder_s)[0]) / c.encoder
        self._medium_compute = float(np.diff(media.compute_s)[0])
        self.stall_s = stall_s(deployment, constants)

    def _slopes(self, window: int) -> tuple[float, float]:
        """Compute and reads of one token back, in layers of that window (0: none)."""
        own = tuple(layer for layer in self.deployment.model.layers if (layer.attention.window or 0) == window)
        cut = self.deployment
        compute = read = 0.0
        wide = cut.chip.peak("bf16" if "bf16" in cut.chip.peaks else "fp16")
        for layer in own:
            attention = layer.attention
            heads = attention.heads / cut.tp
            width = float(attention.head_dim + attention.value_dim)
            latent = 2.0 * attention.kv_rank + attention.rope_dim if attention.latent else width
            held = attention.kv_width / (1 if attention.latent else min(cut.tp, attention.kv_heads))
            compute += 2.0 * heads * latent / wide
            read += held * cut.precision.cache_bytes / cut.chip.bandwidth
        share = cut.dp * cut.pp
        return compute / share, read / share

    def _logit_slope(self) -> list[float]:
        """What more positions than one cost in the last product and in sampling, on the grid."""
        grid = np.array(self._grid)
        c = self.constants
        full = work(self.deployment, Batch(prefill=grid, logits=grid), c.routing)
        none = work(self.deployment, Batch(prefill=grid, logits=1.0), c.routing)
        extra = (
            full.products_s - none.products_s + (full.stream_s - none.stream_s) / c.of("stream", self.deployment.engine)
        )
        return [float(each) for each in np.maximum(extra, 0.0)]

    def _read(self, table: list[float], tokens: float) -> float:
        grid = self._grid
        if tokens <= grid[0]:
            return table[0]
        if tokens >= grid[-1]:
            return table[-1] * tokens / grid[-1]
        right = bisect_right(grid, tokens)
        share = (tokens - grid[right - 1]) / (grid[right] - grid[right - 1])
        return table[right - 1] + share * (table[right] - table[right - 1])

    def step(self, decode: int, context: float, prefill: int = 0, pairs: float = 0.0, media: float = 0.0) -> float:
        """Seconds of one step, the host's mean stall included.

        Args:
            context: tokens that the decoding sequences look back on, all together.
            pairs: of prompt tokens and what each looks back on.
        """
        device, _, _ = self._cost(decode, context, prefill, pairs, media)
        return device + self.stall_s

    def _cost(
        self, decode: int, context: float, prefill: int, pairs: float, media: float
    ) -> tuple[float, float, float]:  # fmt: skip
        tokens = decode + prefill
        c = self.constants
        compute = read = 0.0
        mean = context / decode if decode else 0.0
        for window, (flops, moved) in zip(self._windows, self._reads, strict=True):
            seen = context if not window or mean <= window else decode * float(window)
            compute += flops * seen
            read += moved * seen
        read += self._answer * decode
        attention = 0.0
        if decode:
            attention = ((compute / self._rate) ** BLEND + (read / c.cache_read) ** BLEND) ** (1 / BLEND)
        ahead = pairs * self._pair + media * self._medium
        device = self._read(self._base, tokens) - self._host + attention + ahead
        device += self._read(self._logits, decode)
        if self._launched > 0:  # the table holds both blended; unblend and blend again with attention
            inner = max(self._read(self._base, tokens) - self._host, 1e-12) ** HOST_BLEND - self._launched**HOST_BLEND
            inner = max(inner, 0.0) ** (1 / HOST_BLEND) + attention + ahead + self._read(self._logits, decode)
            device = (inner**HOST_BLEND + self._launched**HOST_BLEND) ** (1 / HOST_BLEND)
        time = device + self._host + decode * self._sequence
        return time, compute + self._pair_compute * pairs + self._medium_compute * media, read

    def joules(self, decode: int, context: float, prefill: int = 0, pairs: float = 0.0, media: float = 0.0) -> float:
        """Energy of one step of all the deployment's accelerators; 0 where their power is not known."""
        full = self.deployment.chip.power_w
        if full is None:
            return 0.0
        time, compute, read = self._cost(decode, context, prefill, pairs, media)
        time += self.stall_s
        tokens = decode + prefill
        compute += self._read(self._compute, tokens)
        read += self._read(self._memory, tokens)
        share = float(watts_share(compute, read, time, self.constants))
        cap = self.deployment.chip.power_cap_w or full
        return min(full * share, cap) * time * self.deployment.accelerators

    @property
    def idle_w(self) -> float:
        """Power of all its accelerators between steps."""
        return (self.deployment.chip.power_w or 0.0) * self.constants.idle * self.deployment.accelerators
