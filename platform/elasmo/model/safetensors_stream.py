"""Writes a safetensors file tensor by tensor; the library's own writer wants all of them in memory, twice.

The format: eight bytes of header length, a JSON header with dtype, shape and byte range of each tensor, then the bytes
(https://github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class TensorSpec:
    """dtype by the format's name, such as `BF16`, and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def write_safetensors(
    path: Path, specs: Mapping[str, TensorSpec], value: Callable[[str], Tensor], metadata: Mapping[str, str]
) -> None:
    """Writes one file.

    Args:
        specs: of all tensors, in the order in which they are written.
        value: gives a tensor when its turn comes; it is dropped before the next.
        metadata: goes into the header.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, spec in specs.items():
        header[name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.bytes],
        }
        offset += spec.bytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as out:
        out.write(len(encoded).to_bytes(8, "little"))
        out.write(encoded)
        for name, spec in specs.items():
            tensor = value(name).detach().cpu().contiguous()
            if tuple(tensor.shape) != spec.shape or tensor.dtype != DTYPES[spec.dtype]:
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not {spec}.")
            out.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
