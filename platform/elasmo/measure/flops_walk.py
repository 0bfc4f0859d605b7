"""Adds up products on the way through a model, and decides which of them the backward pass repeats.

A gradient passes through a product when something before it is trained: the walk remembers that for the stream it is
in. So what it adds is what autograd computes, matrix by matrix, whatever is frozen.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from elasmo.config import LoraConfig


@dataclass(frozen=True)
class Flops:
    """Of a part: forward, with the backward pass, and with what is recomputed in it."""

    forward: float = 0.0
    model: float = 0.0
    hardware: float = 0.0

    def __add__(self, other: Flops) -> Flops:
        return Flops(self.forward + other.forward, self.model + other.model, self.hardware + other.hardware)

    def __mul__(self, times: float) -> Flops:
        return Flops(self.forward * times, self.model * times, self.hardware * times)


class Trained:
    """Which parameters are trained, asked by name or by the name of the module around them."""

    def __init__(self, names: Set[str] | None) -> None:
        self._names = names
        self._around = {".".join(name.split(".")[:count]) for name in names or () for count in range(1, 20)}

    def weight(self, name: str) -> bool:
        return self._names is None or name in self._names or f"{name}.weight" in self._names

    def inside(self, name: str) -> bool:
        return self._names is None or name in self._around


@dataclass(frozen=True)
class Rows:
    """Positions that attend to one another: how many there are for a unit, and how many pairs for another."""

    unit: str
    count: int
    pair_unit: str
    pairs: int


@dataclass
class Walk:
    """Follows a forward pass and adds up what each unit costs.

    Attributes:
        passes: whether a gradient has to come back to where the walk stands, by the stream that it follows: the
            decoder's `sequence`, or the `media` that a tower makes.
        rates: FLOPs of one unit, by part and unit.
        last: forward FLOPs of the last product, of one unit.
    """

    trained: Trained
    lora: LoraConfig | None
    part: str = "vision"
    stream: str = "media"
    passes: dict[str, bool] = field(default_factory=lambda: {"sequence": False, "media": False})
    rates: dict[tuple[str, str], Flops] = field(default_factory=dict)
    last: float = 0.0

    def touch(self, *names: str) -> None:
        """Embeddings, norms, gates: no product, but something that may be trained."""
        self.passes[self.stream] |= any(map(self.trained.inside, names))

    def products(self, unit: str, weights: Mapping[str, tuple[int, float]], times: float = 1.0) -> None:
        """Matrices side by side, name -> (inputs, outputs), each applied `times` for a unit.

        A name may be a module's or a parameter's.
        """
        thin: dict[str, tuple[int, float]] = {}
        for name, (inputs, outputs) in weights.items():
            self._product(unit, name, 2.0 * inputs * outputs * times)
            if self.lora is not None and self.part == "decoder" and name.split(".")[-1] in self.lora.targets:
                self._product(unit, f"{name}.lora_a", 2.0 * inputs * self.lora.rank * times)
                thin[name] = (self.lora.rank, outputs)
        self.touch(*(name for name in weights if name not in thin))
        for name in thin:
            self.touch(f"{name}.weight", f"{name}.bias", f"{name}.lora_a")
        for name, (rank, outputs) in thin.items():
            self._product(unit, f"{name}.lora_b", 2.0 * rank * outputs * times)
        self.touch(*thin)

    def attention(self, unit: str, width: float) -> None:
        """Scores and sums of values, of `width` numbers a pair."""
        self._add(unit, 4.0 * width, 2 * self.passes[self.stream])

    def again(self, unit: str, flops: float) -> None:
        """Forward FLOPs that are computed once more in the backward pass."""
        self.rates[self.part, unit] += Flops(hardware=flops)

    def forward(self) -> dict[str, float]:
        """Forward FLOPs so far of the part, by unit."""
        return {unit: flops.forward for (part, unit), flops in self.rates.items() if part == self.part}

    def _product(self, unit: str, name: str, flops: float) -> None:
        self._add(unit, flops, self.trained.weight(name) + self.passes[self.stream])

    def _add(self, unit: str, flops: float, backward: int) -> None:
        used = flops * (1 + backward)
        self.rates[self.part, unit] = self.rates.get((self.part, unit), Flops()) + Flops(flops, used, used)
        self.last = flops
