"""A cluster: groups of equal accelerators with their fabrics; `64xH100`, mixed fleets, or a user's YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from elasmo.config.section import Positive, PositiveFloat, Section
from elasmo.simulate.accelerator import GIB, Accelerator, HardwareError, accelerator, dtype_name
from elasmo.simulate.fabric import Fabric, FabricKind, scale_out, scale_up


@dataclass(frozen=True)
class Group:
    """Equal accelerators on one pair of fabrics."""

    chip: Accelerator
    count: int
    up: Fabric
    out: Fabric

    @property
    def price_usd_h(self) -> float | None:
        """Of an accelerator and hour."""
        return self.chip.price_usd_h


@dataclass(frozen=True)
class Cluster:
    """One or more groups; several make a mixed fleet."""

    groups: tuple[Group, ...]

    @property
    def count(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def price_usd_h(self) -> float | None:
        """Of the whole cluster and hour; None where a price is not known."""
        prices = [group.price_usd_h for group in self.groups]
        if any(price is None for price in prices):
            return None
        return sum(group.count * (group.price_usd_h or 0.0) for group in self.groups)

    def resized(self, count: int) -> Cluster:
        """The same kind of cluster with another number of accelerators, of one group."""
        if len(self.groups) != 1:
            raise HardwareError("A mixed fleet cannot be resized as a whole; name its groups.")
        return Cluster((replace(self.groups[0], count=count),))

    def __str__(self) -> str:
        return "+".join(f"{group.count}x{group.chip.name}" for group in self.groups)


def group(chip: Accelerator, count: int, out: Fabric | None = None) -> Group:
    """`count` accelerators with the fabrics of their kind."""
    return Group(chip, count, scale_up(chip), out or scale_out(chip))


def parse_cluster(text: str, own: Iterable[Accelerator] = ()) -> Cluster:
    """`64xH100`, `32xH100+32xA100`, `512xTPU v5p`, optionally with a price: `64xH100@2.5` dollars an hour each.

    Raises:
        HardwareError: not of that form, or hardware that is not known.
    """
    groups = []
    for part in text.split("+"):
        found = re.fullmatch(r"\s*(\d+)\s*[x×*]\s*([^@]+?)\s*(?:@\s*\$?(\d+(?:\.\d+)?))?\s*", part)
        if found is None or int(found[1]) < 1:
            raise HardwareError(f"cluster={part.strip()!r} is not of the form COUNTxACCELERATOR, such as 64xH100.")
        chip = accelerator(found[2], own)
        if found[3]:
            chip = replace(chip, price_usd_h=float(found[3]))
        groups.append(group(chip, int(found[1])))
    return Cluster(tuple(groups))


class FabricSection(Section):
    """A network, of an accelerator or of a cluster."""

    kind: FabricKind = "rail"
    GBps: PositiveFloat | None = Field(None, description="of an accelerator in one direction; of a torus, of a link")
    latency_us: PositiveFloat | None = None
    domain: Positive | None = None
    oversubscription: float = Field(1.0, ge=1)
    reconfigurable: bool = False
    full: tuple[Positive, ...] = ()


class AcceleratorSection(Section):
    """An accelerator of the user's own. `like` gives what is not stated, peaks never."""

    name: str
    peak_tflops: dict[str, PositiveFloat] = Field(description="dense, by dtype")
    memory_gb: PositiveFloat | None = None
    memory_GBps: PositiveFloat | None = None
    power_w: PositiveFloat | None = None
    price_usd_h: PositiveFloat | None = None
    generation: str = Field("hopper", description="whose efficiency constants it has")
    cores: Positive = 132
    host: Positive = 8
    scale_up: FabricSection = FabricSection(kind="nvlink-switch", GBps=450.0, domain=8)
    scale_out_GBps: PositiveFloat = 50.0


class GroupSection(Section):
    accelerator: str
    count: Positive
    price_usd_h: PositiveFloat | None = None
    power_cap_w: PositiveFloat | None = None
    scale_out: FabricSection | None = None


class HardwareSection(Section):
    """A hardware YAML: accelerators of one's own, and a fleet."""

    version: Literal[1] = 1
    accelerators: tuple[AcceleratorSection, ...] = ()
    fleet: tuple[GroupSection, ...] = ()


def load_hardware(path: str | Path) -> tuple[list[Accelerator], Cluster | None]:
    """Accelerators and the fleet of a hardware YAML; no fleet where it names none.

    Raises:
        HardwareError: a file that cannot be read or does not say what it must.
    """
    try:
        raw = yaml.safe_load(Path(path).read_text())
        section = HardwareSection.model_validate(raw or {})
    except (OSError, yaml.YAMLError) as error:
        raise HardwareError(f"hardware={path} cannot be read: {str(error).splitlines()[0]}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise HardwareError(f"hardware={path}: {where}: {first['msg']}.") from None
    own = [_accelerator(entry) for entry in section.accelerators]
    groups = tuple(_group(entry, own) for entry in section.fleet)
    return own, Cluster(groups) if groups else None


def _accelerator(section: AcceleratorSection) -> Accelerator:
    up = section.scale_up
    peaks = {dtype_name(kind): rate * 1e12 for kind, rate in section.peak_tflops.items()}
    return Accelerator(
        name=section.name, generation=section.generation, peaks=peaks,
        memory_bytes=None if section.memory_gb is None else section.memory_gb * GIB,
        memory_bandwidth=None if section.memory_GBps is None else section.memory_GBps * 1e9,
        scaleup_bandwidth=(up.GBps or 0.0) * 1e9, scaleup_domain=up.domain or 1, scaleup_kind=up.kind,
        scaleout_bandwidth=section.scale_out_GBps * 1e9, power_w=section.power_w, cores=section.cores,
        host=section.host, price_usd_h=section.price_usd_h, source="hardware YAML",
    )  # fmt: skip


def _group(section: GroupSection, own: Iterable[Accelerator]) -> Group:
    chip = accelerator(section.accelerator, own)
    changes: Mapping[str, Any] = {
        key: value
        for key, value in (("price_usd_h", section.price_usd_h), ("power_cap_w", section.power_cap_w))
        if value is not None
    }
    chip = replace(chip, **changes)
    made = group(chip, section.count)
    stated = section.scale_out
    if stated is None:
        return made
    out = replace(
        made.out, kind=stated.kind, oversubscription=stated.oversubscription, reconfigurable=stated.reconfigurable,
        full=stated.full, bandwidth=made.out.bandwidth if stated.GBps is None else stated.GBps * 1e9,
        latency_s=made.out.latency_s if stated.latency_us is None else stated.latency_us * 1e-6,
    )  # fmt: skip
    return replace(made, out=out)
