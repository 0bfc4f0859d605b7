"""Accelerators: peaks by dtype, memory, links, power and price, from published tables or a user's YAML.

A chip or a dtype that is not known is refused with what is; it never gets another chip's number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from elasmo.simulate.published import optional_number, read_table

GIB = float(1 << 30)
DTYPE_NAMES = {
    "bf16": "bf16", "bfloat16": "bf16", "amp_bf16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16",
    "amp_fp16": "fp16", "fp8": "fp8", "float8": "fp8", "amp_fp8": "fp8", "mxfp8": "fp8", "e4m3": "fp8",
    "fp8-cs": "fp8", "fp8-ds": "fp8", "fp8-mx": "fp8", "fp8-sc": "fp8", "fp4": "fp4", "nvfp4": "fp4", "mxfp4": "fp4",
    "int8": "int8", "w8a8": "int8", "fp32": "fp32", "float32": "fp32", "tf32": "tf32",
}  # fmt: skip
BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}


class HardwareError(ValueError):
    """Hardware that is not known or cannot be, in a sentence that says what is allowed."""


@dataclass(frozen=True)
class Accelerator:
    """One chip.

    Attributes:
        peaks: dense peak in FLOP/s (integer operations/s for int8) by dtype.
        memory_bytes: device memory; what is sold as GB is GiB. None: unknown.
        memory_bandwidth: bytes/s. None: unknown.
        scaleup_bandwidth: bytes/s in one direction to the scale-up domain; of a torus, on one link.
        scaleup_domain: accelerators that the scale-up fabric joins.
        scaleup_kind: its fabric: nvlink-switch, nvlink-bridge, xgmi-mesh, torus2d, torus3d, pcie, ...
        scaleout_bandwidth: bytes/s in one direction to the rest of the cluster.
        power_w: thermal design power. None: unknown.
        power_cap_w: power that its owner allows it, where less.
        generation: whose efficiency constants it has.
        cores: streaming multiprocessors, compute units or tensor cores.
        host: accelerators on a host.
        price_usd_h: list price of an hour. None: unknown.
    """

    name: str
    generation: str
    peaks: Mapping[str, float] = field(hash=False)
    memory_bytes: float | None
    memory_bandwidth: float | None
    scaleup_bandwidth: float
    scaleup_domain: int
    scaleup_kind: str
    scaleout_bandwidth: float
    power_w: float | None = None
    power_cap_w: float | None = None
    cores: int = 1
    host: int = 8
    price_usd_h: float | None = None
    source: str = ""

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s of a dtype.

        Raises:
            HardwareError: a dtype whose peak is not known.
        """
        kind = dtype_name(dtype)
        if kind not in self.peaks:
            raise HardwareError(
                f"dtype={dtype} has no known peak on {self.name}; use one of {', '.join(sorted(self.peaks))}, "
                "or give its peak in the hardware YAML."
            )
        return self.peaks[kind]

    @property
    def bandwidth(self) -> float:
        """Bytes/s of memory.

        Raises:
            HardwareError: not known.
        """
        if self.memory_bandwidth is None:
            raise HardwareError(f"memory_GBps of {self.name} is not known; give it in the hardware YAML.")
        return self.memory_bandwidth

    @property
    def memory(self) -> float:
        """Bytes of memory.

        Raises:
            HardwareError: not known.
        """
        if self.memory_bytes is None:
            raise HardwareError(f"memory_gb of {self.name} is not known; give it in the hardware YAML.")
        return self.memory_bytes


def dtype_name(text: str) -> str:
    """`amp_bf16`, `fp8+bf16attn`, `MXFP8`, `FP8-CS (FP8-MX)` -> the dtype of the matrix products.

    Raises:
        HardwareError: none of the known ones.
    """
    words = re.split(r"[\s+(/,]", text.strip().lower())
    if words[0] in DTYPE_NAMES:
        return DTYPE_NAMES[words[0]]
    kinds = "bfloat16|float16|bf16|fp16|mxfp8|fp8|nvfp4|mxfp4|fp4|int8|fp32|tf32"
    stem = re.match(rf"(?:amp_|mixed[-_]?)?({kinds})(?!\d)", words[0])
    if stem is not None:
        return DTYPE_NAMES[stem[1]]
    raise HardwareError(f"dtype={text} is not known; use one of {', '.join(sorted(set(DTYPE_NAMES.values())))}.")


@cache
def catalogue() -> dict[str, Accelerator]:
    """Every accelerator of the published tables, by name."""
    details = {row["name"]: row for row in read_table("accelerator_details")}
    found = {}
    for row in read_table("H01_accelerators"):
        detail = details[row["name"]]
        number = {key: optional_number(value) for key, value in row.items() if key not in ("notes", "source")}
        columns = {"bf16": "bf16_dense_tflops", "fp16": "bf16_dense_tflops", "fp8": "fp8_dense_tflops"}
        columns |= {"fp4": "fp4_dense_tflops", "int8": "int8_tops"}
        if detail["generation"] == "volta":
            del columns["bf16"]
        if detail["generation"] in ("tpu", "trainium"):
            del columns["fp16"]
        peaks = {kind: rate * 1e12 for kind, column in columns.items() if (rate := number[column]) is not None}
        for kind, column in (("tf32", "tf32_dense_tflops"), ("fp32", "fp32_tflops")):
            rate = optional_number(detail[column])
            if rate is not None:
                peaks[kind] = rate * 1e12
        memory, speed = number["hbm_gb"], number["hbm_GBps"]
        found[row["name"]] = Accelerator(
            name=row["name"],
            generation=detail["generation"],
            peaks=peaks,
            memory_bytes=None if memory is None else memory * GIB,
            memory_bandwidth=None if speed is None else speed * 1e9,
            scaleup_bandwidth=(number["scaleup_GBps_per_dir"] or 0.0) * 1e9,
            scaleup_domain=int(number["scaleup_domain"] or 1),
            scaleup_kind=detail["fabric"],
            scaleout_bandwidth=(number["scaleout_GBps_per_dir"] or 0.0) * 1e9,
            power_w=number["tdp_w"],
            cores=int(detail["cores"]),
            host=int(detail["host"]),
            price_usd_h=number["price_usd_h"],
            source=f"{row['source']} (verified: {row['verified']})",
        )
    return found


@cache
def _aliases() -> dict[str, str]:
    known = {_plain(name): name for name in catalogue()}
    for row in read_table("accelerator_details"):
        known |= {_plain(alias): row["name"] for alias in row["aliases"].split("|")}
    return known


@cache
def _aliases_by_words() -> dict[frozenset[str], str]:
    found = {_words(name): name for name in catalogue()}
    for row in read_table("accelerator_details"):
        found |= {_words(alias): row["name"] for alias in row["aliases"].split("|")}
    return found


def _words(name: str) -> frozenset[str]:
    """The words of a name in any order: `A100-80GB-SXM` is `A100-SXM-80GB`; a TPU's slice size is no part of it."""
    plain = re.sub(r"\b(v\d+[a-z]?)-\d+$", r"\1", name.strip().lower())
    return frozenset(re.split(r"[-_\s]+", re.sub(r"sxm\d", "sxm", plain)))


def accelerator(name: str, own: Iterable[Accelerator] = ()) -> Accelerator:
    """The accelerator that a name means: `H100`, `h100_80gb`, `TPU v5p`, or one of the user's own.

    What a published table adds in its own words is read too: `H100-SXM 96GB HBM2e 2.4TB/s, 500W cap` is an H100-SXM
    with that memory, bandwidth and power cap.

    Raises:
        HardwareError: not known.
    """
    for mine in own:
        if _plain(mine.name) == _plain(name):
            return mine
    maker = r"^\s*(?:\d+\s*[x×]\s*)?(?:(?:nvidia|google|amd|intel|aws|cloud)\s+)*"
    name = re.sub(maker, "", name, flags=re.IGNORECASE)
    plain = _plain(name)
    if plain in _aliases():
        return catalogue()[_aliases()[plain]]
    stated = re.sub(r"\(.*?\)", " ", name)
    head = re.split(r"[,;]", stated)[0]
    if _plain(head) in _aliases():
        return _with_words(catalogue()[_aliases()[_plain(head)]], name)
    words = head.split()
    for count in range(len(words), 0, -1):
        plain = _plain(" ".join(words[:count]))
        if plain in _aliases() and not re.match(r"[a-z]", _plain(" ".join(words[count:]))):
            return _with_words(catalogue()[_aliases()[plain]], name)
    spelled = _words(head)
    for alias, meant in _aliases_by_words().items():
        if alias == spelled:
            return _with_words(catalogue()[meant], name)
    known = sorted([*(mine.name for mine in own), *catalogue()])
    raise HardwareError(
        f"accelerator={name} is not known; use one of {', '.join(known)}, or describe it in a hardware YAML."
    )


def _with_words(base: Accelerator, words: str) -> Accelerator:
    changes: dict[str, Any] = {}
    if found := re.search(r"\b(\d+(?:\.\d+)?) ?GB\b(?!/)", words):
        changes["memory_bytes"] = float(found[1]) * GIB
    if found := re.search(r"\b(\d+(?:\.\d+)?) ?TB/s", words):
        changes["memory_bandwidth"] = float(found[1]) * 1e12
    if found := re.search(r"\b(\d+) ?W cap", words):
        changes["power_cap_w"] = float(found[1])
    if found := re.search(r"\b(\d+) ?Gb/s/GPU", words):
        changes["scaleout_bandwidth"] = float(found[1]) / 8 * 1e9
    return replace(base, **changes) if changes else base


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
