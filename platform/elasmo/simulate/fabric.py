"""Fabrics: what joins accelerators, with a bandwidth and a latency a hop; switches, fat trees, rails and tori."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from elasmo.simulate.accelerator import Accelerator, HardwareError

FabricKind = Literal[
    "nvlink-switch", "nvlink-bridge", "nvlink-mesh", "xgmi-mesh", "ethernet-mesh", "pcie", "none",
    "fat-tree", "rail", "torus2d", "torus3d",
]  # fmt: skip
TORI: tuple[FabricKind, ...] = ("torus2d", "torus3d")
SWITCH_LATENCY_S = 5e-6
HOP_LATENCY_S = 1e-6
NETWORK_LATENCY_S = 12e-6


@dataclass(frozen=True)
class Fabric:
    """A network among `domain` accelerators.

    Attributes:
        bandwidth: bytes/s of an accelerator in one direction; of a torus, of one link.
        latency_s: of a message between two neighbours, software included.
        domain: accelerators that it joins.
        oversubscription: of a fat tree: how much less it carries above the leaves than below.
        rails: accelerators of a host, each on its own rail; traffic between rails crosses the spine or the host.
        reconfigurable: of a torus: optical switches give a slice wrap-around links in every dimension and shape it to
            the job (Jouppi et al. 2023, TPU v4); without, a slice below a full dimension is an open mesh.
        full: of a torus: accelerators along each dimension of the whole machine.
    """

    kind: FabricKind
    bandwidth: float
    latency_s: float
    domain: int
    oversubscription: float = 1.0
    rails: int = 1
    reconfigurable: bool = False
    full: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(FabricKind):
            raise HardwareError(f"fabric kind={self.kind} is not known; use one of {', '.join(get_args(FabricKind))}.")
        if self.oversubscription < 1:
            raise HardwareError(f"oversubscription={self.oversubscription:g} must be at least 1.")

    @property
    def dimensions(self) -> int:
        """Of a torus, 2 or 3; else 1."""
        return {"torus2d": 2, "torus3d": 3}.get(self.kind, 1)

    def slice_shape(self, count: int) -> tuple[int, ...]:
        """The box closest to a cube that holds `count` accelerators of a torus."""
        return _box(count, self.dimensions)

    def ring_bandwidth(self, count: int, spread: int | None = None) -> float:
        """Bytes/s in one direction at which `count` accelerators reduce or gather together.

        On a torus all links of the dimensions that the group spans work at once, both ways where the ring closes.
        `spread`: accelerators over which the group's members are strewn, each that many apart.
        """
        if self.kind not in TORI:
            up = self.bandwidth
            return up / self.oversubscription if count * (spread or 1) > self.rails else up
        shape = self.slice_shape(count)
        links = 0.0
        for axis, size in enumerate(shape):
            if size > 1:
                links += 2.0 if self.closes(axis, size) else 1.0
        return self.bandwidth * max(links, 1.0)

    def closes(self, axis: int, size: int) -> bool:
        """Whether a torus slice of `size` along a dimension has its wrap-around link."""
        if self.reconfigurable:
            return size >= 4
        return bool(self.full) and size >= self.full[min(axis, len(self.full) - 1)]


def _box(count: int, dimensions: int) -> tuple[int, ...]:
    if dimensions == 1:
        return (count,)
    root = round(count ** (1 / dimensions))
    side = next(size for size in range(max(root, 1), 0, -1) if count % size == 0)
    return tuple(sorted((side, *_box(count // side, dimensions - 1))))


def scale_up(chip: Accelerator) -> Fabric:
    """The fabric of the accelerator's scale-up domain."""
    kind: FabricKind = chip.scaleup_kind  # type: ignore[assignment]
    if kind in TORI:
        dimensions = 2 if kind == "torus2d" else 3
        side = max(1, round(chip.scaleup_domain ** (1 / dimensions)))
        return Fabric(
            kind, chip.scaleup_bandwidth, HOP_LATENCY_S, chip.scaleup_domain,
            reconfigurable=kind == "torus3d", full=(side,) * dimensions,
        )  # fmt: skip
    return Fabric(kind, chip.scaleup_bandwidth, SWITCH_LATENCY_S, chip.scaleup_domain)


def scale_out(chip: Accelerator, kind: FabricKind = "rail", oversubscription: float = 1.0) -> Fabric:
    """The network between scale-up domains: rail-optimised unless told otherwise."""
    return Fabric(
        kind, chip.scaleout_bandwidth, NETWORK_LATENCY_S, 1 << 30, oversubscription, rails=chip.host
    )  # fmt: skip


def hops(fabric: Fabric, count: int) -> int:
    """Steps that the farthest of `count` accelerators are apart."""
    if fabric.kind not in TORI:
        return 1 if count <= fabric.domain else 3
    shape = fabric.slice_shape(count)
    return max(1, sum(math.ceil(size / (2 if fabric.closes(axis, size) else 1)) for axis, size in enumerate(shape)))
