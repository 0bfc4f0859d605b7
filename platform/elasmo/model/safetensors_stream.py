"""Safetensors tensor by tensor, in any store; the library's own writer wants all of them in memory, twice.

While a file is written its SHA-256 is taken, and a CRC-32 of each tensor: the one says that a file is what was written,
the other, at a third of the cost, that the part which is read is.

The format: eight bytes of header length, a JSON header with dtype, shape and byte range of each tensor, then the bytes
(https://github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from elasmo.model.stores import LocalStore, Store

CHUNK_BYTES = 4 << 20
"""Small enough that both sums and the write find a chunk in the cache."""

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


@dataclass(frozen=True)
class Written:
    """A file as it was written: size, SHA-256 of all of it, CRC-32 of each tensor's bytes."""

    bytes: int
    sha256: str
    crc32: Mapping[str, int]


def write_safetensors(
    path: Path, specs: Mapping[str, TensorSpec], value: Callable[[str], Tensor], metadata: Mapping[str, str]
) -> Written:
    """Writes one file of a folder; see `stream_safetensors`."""
    return stream_safetensors(LocalStore(path.parent), path.name, specs, value, metadata)


def stream_safetensors(
    store: Store,
    name: str,
    specs: Mapping[str, TensorSpec],
    value: Callable[[str], Tensor],
    metadata: Mapping[str, str],
) -> Written:
    """Writes one file.

    Args:
        specs: of all tensors, in the order in which they are written.
        value: gives a tensor when its turn comes; it is dropped before the next.
        metadata: goes into the header.
    """
    digest, sums = hashlib.sha256(), {}

    def chunks() -> Iterator[bytes | memoryview]:
        header = encode_header(specs, metadata)
        digest.update(header)
        yield header
        for key, spec in specs.items():
            tensor = value(key)
            if tuple(tensor.shape) != spec.shape or tensor.dtype != DTYPES[spec.dtype]:
                raise ValueError(f"{key} is {tensor.dtype} {tuple(tensor.shape)}, not {spec}.")
            sums[key], data = 0, tensor_bytes(tensor)
            for start in range(0, len(data), CHUNK_BYTES):
                chunk = data[start : start + CHUNK_BYTES]
                digest.update(chunk)
                sums[key] = zlib.crc32(chunk, sums[key])
                yield chunk

    size = store.write(name, chunks())
    return Written(size, digest.hexdigest(), sums)


def encode_header(specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """What a file begins with: the header's length and the header, padded to eight bytes."""
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
    return len(encoded).to_bytes(8, "little") + encoded


@dataclass(frozen=True)
class Span:
    """Where a tensor lies in a file: its spec and [start, stop) in bytes of the file."""

    spec: TensorSpec
    start: int
    stop: int


def read_header(store: Store, name: str) -> dict[str, Span]:
    """Where each tensor of a file lies.

    Raises:
        ValueError, KeyError, TypeError: it is no safetensors header.
        FileNotFoundError: there is no such file.
    """
    length, size = int.from_bytes(store.read(name, 0, 8), "little"), store.size(name)
    if 8 + length > size:
        raise ValueError("the header is longer than the file")
    header = json.loads(bytes(store.read(name, 8, 8 + length)))
    found = {}
    for key, entry in header.items():
        if key != "__metadata__":
            start, stop = entry["data_offsets"]
            spec = TensorSpec(entry["dtype"], tuple(entry["shape"]))
            if stop - start != spec.bytes or not 0 <= start <= stop <= size - 8 - length:
                raise ValueError(f"{key!r} does not lie where its shape says")
            found[key] = Span(spec, 8 + length + start, 8 + length + stop)
    return found


def tensor_bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes in memory order; of a contiguous one on the CPU without a copy."""
    flat = tensor.detach().cpu().contiguous()
    flat = flat.as_strided((flat.numel(),), (1,))  # one element may come with any stride and still be contiguous
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def tensor_name(dtype: torch.dtype) -> str:
    """The format's name of a dtype, such as `BF16`."""
    return next(name for name, known in DTYPES.items() if known == dtype)
