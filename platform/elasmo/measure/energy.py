"""Joules from the counters that machines have: NVML's of a GPU, or RAPL's of a CPU's packages, or none.

RAPL is the Linux power capping interface (Documentation/power/powercap); its counters wrap. It covers packages, not
the rest of the machine. Where nothing can be read there is no number: an estimate is made elsewhere, and called one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

RAPL = Path("/sys/class/powercap")


@dataclass
class Counter:
    """A counter of joules that never goes back.

    Attributes:
        source: what it counts.
    """

    source: str
    read: Callable[[], float]
    _last: float | None = field(default=None, init=False)

    def since(self) -> float:
        """Joules since the last call; 0 at the first one, and where the counter could not be read."""
        try:
            now = self.read()
        except (OSError, ValueError):
            return 0.0
        before, self._last = self._last, now
        return max(0.0, now - before) if before is not None else 0.0


@dataclass
class _Package:
    folder: Path
    range_j: float
    last_j: float
    total_j: float = 0.0

    def joules(self) -> float:
        now = _microjoules(self.folder / "energy_uj")
        self.total_j += now - self.last_j + (self.range_j if now < self.last_j else 0.0)
        self.last_j = now
        return self.total_j


def rapl(root: Path = RAPL) -> Counter | None:
    """The packages of this machine; None where there are none or they may not be read (often by root alone)."""
    packages = []
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            # A part of a package has two colons; `psys`, the platform, has the packages in it once more.
            if folder.name.count(":") > 1 or not (folder / "name").read_text().startswith("package"):
                continue
            packages.append(
                _Package(folder, _microjoules(folder / "max_energy_range_uj"), _microjoules(folder / "energy_uj"))
            )
        except (OSError, ValueError):
            return None
    if not packages:
        return None
    return Counter("RAPL packages of the nodes", lambda: sum(package.joules() for package in packages))


def nvml(uuid: str) -> Counter | None:
    """A GPU of this machine; None without NVML or a chip that counts (Volta and later do).

    Args:
        uuid: `GPU-` and its id. NVML's numbers are no help: it counts GPUs that CUDA_VISIBLE_DEVICES hides.
    """
    try:
        import pynvml  # type: ignore[import-not-found, unused-ignore]  # of the package nvidia-ml-py

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # pynvml raises kinds of its own, of a library that may be absent
        return None
    return Counter("NVML, the GPUs alone", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)


def _microjoules(file: Path) -> float:
    return int(file.read_text()) / 1e6
