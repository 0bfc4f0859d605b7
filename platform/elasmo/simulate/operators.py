"""Times of single operators on one accelerator: a roofline whose efficiency depends on the shape.

A matrix product covers its output with tiles, the tiles fill the cores in waves, and the inner dimension has to be long
enough to pay for each tile's start and end. Attention is fused; what is not a product streams through memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from elasmo.simulate.accelerator import BYTES, Accelerator, catalogue, dtype_name
from elasmo.simulate.calibration import Calibration, default_calibration

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.97), (128, 64, 0.85), (64, 128, 0.85), (64, 64, 0.6))
"""Rows, columns, and share of the full rate of the tiles that libraries choose from."""
NARROW = 0.2
"""How attention slows with heads narrower than 128: softmax takes the same for half of the products."""
ATTENTION_LOAD = 0.6
"""Dynamic power of attention over that of products."""
SMOOTH = 6.0
"""How sharp the roofline's knee is: compute and memory overlap, but not perfectly where both take long."""


@lru_cache(maxsize=200_000)
def tile_share(rows: int, columns: int, cores: int) -> float:
    """Share of the cores' rate that a [rows, columns] output can use: whole tiles, whole waves, the best of the tiles.

    Where a product has many waves a library balances the last one (split and stream-K), so its loss is shared.
    """
    best = 0.0
    for height, width, rate in TILES:
        tiles = math.ceil(rows / height) * math.ceil(columns / width)
        waves = tiles / cores
        full = waves / (math.ceil(waves) if waves < 1 else 0.5 * (math.ceil(waves) + waves))
        best = max(best, rate * full * rows * columns / (tiles * height * width))
    return best


REFERENCE = {"ampere": "A100-SXM-80GB", "hopper": "H100-SXM-80GB", "blackwell": "B200-SXM"}
"""Of each generation, the accelerator to which its `demand` refers."""


def density(chip: Accelerator) -> float:
    """Peak for a watt of design power, over that of the generation's reference.

    One silicon is sold with different power: what has more FLOP/s for a watt has to slow its clock more.
    """
    against = catalogue().get(REFERENCE.get(chip.generation, ""))
    if against is None or not chip.power_w or not against.power_w or "bf16" not in chip.peaks:
        return 1.0
    return chip.peaks["bf16"] / chip.power_w / (against.peaks["bf16"] / against.power_w)


@dataclass(frozen=True)
class Operators:
    """Operators of an accelerator, in seconds.

    Attributes:
        calibration: the measured constants.
        lasting: load of minutes, under which power holds the clock down; a kernel that is timed alone is not.
    """

    chip: Accelerator
    calibration: Calibration
    lasting: bool = False

    @classmethod
    def of(cls, chip: Accelerator, calibration: Calibration | None = None) -> Operators:
        return cls(chip, calibration or default_calibration())

    @cached_property
    def launch_s(self) -> float:
        """Of a kernel that does nothing."""
        return self.calibration.of("launch_s", self.chip.generation)

    @cached_property
    def streaming(self) -> float:
        """Bytes/s that streaming kernels reach."""
        return self.chip.bandwidth * self.calibration.of("memory", self.chip.generation)

    @cached_property
    def clock(self) -> float:
        """Share of the clock that power leaves: dynamic power grows with its cube, a third of power is static.

        Under a cap, and under lasting load where products at full clock would draw more than the chip may.
        """
        return self._clock(1.0)

    def _clock(self, load: float) -> float:
        cap, full = self.chip.power_cap_w, self.chip.power_w
        asked = load * (self.calibration.of("demand", self.chip.generation) if self.lasting else 2 / 3)
        if self.lasting:
            asked *= density(self.chip)
        allowed = 1.0 if cap is None or full is None else min(1.0, cap / full)
        return float(min(1.0, (max(allowed - 1 / 3, 0.05) / asked) ** (1 / 3)))

    @cached_property
    def attention_clock(self) -> float:
        """Likewise for attention, whose softmax leaves the matrix units idle: it asks for less power than products."""
        return self._clock(ATTENTION_LOAD)

    def sustained(self, dtype: str) -> float:
        """FLOP/s of large products."""
        return self.chip.peak(dtype) * self.calibration.matmul_share(self.chip.generation, dtype) * self.clock

    def gemm(
        self,
        rows: float,
        columns: float,
        inner: float,
        dtype: str,
        count: float = 1.0,
        weight_bytes: float | None = None,
        out_bytes: float = 2.0,
    ) -> float:
        """[rows, inner] x [inner, columns], `count` of them in one kernel.

        Args:
            dtype: of the arithmetic; inputs are as wide, unless `weight_bytes` says what a weight takes in memory.
            out_bytes: of a number of the result.
        """
        if min(rows, columns, inner, count) <= 0:
            return 0.0
        size = BYTES[dtype_name(dtype)]
        weight = size if weight_bytes is None else weight_bytes
        half = self.calibration.of("inner", self.chip.generation)
        share = tile_share(math.ceil(rows), max(1, round(columns * min(count, 4096))), self.chip.cores)
        rate = self.sustained(dtype) * share * inner / (inner + half)
        compute = 2.0 * count * rows * columns * inner / rate
        moved = count * (rows * inner * size + inner * columns * weight + rows * columns * out_bytes)
        return self._roof(compute, moved / self.streaming) + self.launch_s

    def attention(
        self,
        queries: float,
        keys: float,
        heads: float,
        head_dim: float,
        value_dim: float | None = None,
        kv_heads: float | None = None,
        batch: float = 1.0,
        causal: bool = True,
        window: int | None = None,
        dtype: str = "bf16",
        backward: bool = False,
        kv_bytes: float = 2.0,
        version: int = 2,
    ) -> float:
        """Fused attention of `queries` tokens to `keys` tokens in each of `batch` sequences.

        A causal mask lets the last query see all keys; half of the square is computed where both are equal. The
        backward pass has five products where the forward pass has two. `version` of the kernels: FlashAttention 1 or 2,
        3 for those written for the generation of hardware (FlashAttention 3, cuDNN).
        """
        if min(queries, keys, heads, batch) <= 0:
            return 0.0
        values = head_dim if value_dim is None else value_dim
        seen = pairs(queries, keys, causal, window)
        work = 2.0 * batch * heads * seen * (head_dim + values) * (2.5 if backward else 1.0)
        ramp = self.calibration.attention_ramp
        length = min(keys, window or keys)
        share = self.calibration.attention_share(self.chip.generation, version) * length / (length + ramp)
        share *= min(1.0, (head_dim + values) / 256) ** NARROW * min(1.0, queries / 64)
        share *= self.calibration.attention_backward if backward else 1.0
        kind = dtype_name(dtype)
        if kind not in ("fp32", "tf32"):
            kind = "bf16" if "bf16" in self.chip.peaks else "fp16"
        compute = work / (self.chip.peak(kind) * share * self.attention_clock)
        groups = kv_heads or heads
        touched = batch * (
            groups * length * (head_dim + values) * kv_bytes + heads * queries * (head_dim + values) * BYTES[kind]
        )
        return self._roof(compute, touched * (2.5 if backward else 1.0) / self.streaming) + self.launch_s

    def stream(self, moved: float, kernels: float = 1.0) -> float:
        """Kernels that read and write `moved` bytes in all: norms, activations, residuals, rotations, optimizers."""
        return moved / self.streaming + kernels * self.launch_s if moved > 0 else 0.0

    def embedding(self, tokens: float, hidden: float, size: float = 2.0) -> float:
        """Rows gathered from a table and written."""
        return self.stream(2.0 * tokens * hidden * size)

    def _roof(self, compute: float, memory: float) -> float:
        high, low = max(compute, memory), min(compute, memory)
        return high * (1.0 + (low / high) ** SMOOTH) ** (1 / SMOOTH) if high > 0 else 0.0


def pairs(queries: float, keys: float, causal: bool, window: int | None = None) -> float:
    """Query-key pairs that are computed: of a causal mask the lower part, of a window what lies in it."""
    if not causal:
        return queries * min(keys, window or keys)
    start = keys - queries
    if window is None or window >= keys:
        return queries * start + queries * (queries + 1) / 2
    full = max(0.0, keys - max(window, start))
    return full * window + (queries - full) * (start + (queries - full + 1) / 2)
