"""MDS shards of MosaicML Streaming (format version 2): index.json beside .mds files, read and never written.

A shard is the number of samples, their offsets, then each sample: sizes of columns that have no fixed one, then values.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa
from PIL import Image
from pydantic import BaseModel, ValidationError, model_validator

from elasmo.sources.locate import SourceFile
from elasmo.sources.origin import FilesOrigin
from elasmo.sources.source import SourceError
from elasmo.sources.source_row import Fault, SourceRow

SUFFIXES = (".json", ".mds", ".zstd", ".gz", ".bz2", ".br", ".snappy")
INDEX = "index.json"
PACKED = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}
SCALARS = {
    "int": "<q", "int8": "<b", "int16": "<h", "int32": "<i", "int64": "<q",
    "uint8": "<B", "uint16": "<H", "uint32": "<I", "uint64": "<Q", "float16": "<e", "float32": "<f", "float64": "<d",
}  # fmt: skip


class ShardFile(BaseModel):
    """A file of a shard: its name, size, and hashes by algorithm."""

    basename: str
    bytes: int
    hashes: dict[str, str] = {}


class Shard(BaseModel):
    """What an index says of a shard; `zip_data` is the file of a compressed one."""

    format: Literal["mds"]
    version: Literal[2]
    samples: int
    column_names: tuple[str, ...]
    column_encodings: tuple[str, ...]
    column_sizes: tuple[int | None, ...]
    compression: str | None = None
    raw_data: ShardFile
    zip_data: ShardFile | None = None

    @model_validator(mode="after")
    def _complete(self) -> Shard:
        if not len(self.column_names) == len(self.column_encodings) == len(self.column_sizes):
            raise ValueError("columns differ in number of names, encodings and sizes")
        return self


class Index(BaseModel):
    """index.json."""

    shards: tuple[Shard, ...]


def read(origin: FilesOrigin, files: Sequence[SourceFile]) -> Iterator[SourceRow]:
    """The samples of every shard of every index, numbered from 1 in each shard."""
    named = {file.name: file for file in files}
    indexes = [file for file in files if file.name.rpartition("/")[2] == INDEX]
    if not indexes:
        raise SourceError(
            f"{origin.path!r} holds no {INDEX}, so it is no folder of MDS shards; name the folder that has it."
        )
    for index in indexes:
        folder = index.name.removesuffix(INDEX)
        for shard in _shards(index):
            part = shard.zip_data or shard.raw_data
            name = folder + part.basename
            if name not in named:
                name = folder + shard.raw_data.basename  # streaming may have unpacked it in place
            if name not in named:
                raise SourceError(
                    f"{index.name} names shard {part.basename!r}, which is not beside it; restore the file."
                )
            yield from _samples(named[name], shard, packed=not name.endswith(".mds"))


def _shards(index: SourceFile) -> tuple[Shard, ...]:
    try:
        return Index.model_validate_json(index.read()).shards
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise index.broken(f"{where}: {first['msg']}", "an MDS index") from None


def _samples(file: SourceFile, shard: Shard, packed: bool) -> Iterator[SourceRow]:
    content = file.read()
    try:
        content = _unpacked(content, shard) if packed else content
        _verify(file, content, shard)
        count = struct.unpack_from("<I", content)[0]
        offsets = struct.unpack_from(f"<{count + 1}I", content, 4)
    except (struct.error, ValueError, OSError, EOFError, pa.ArrowException) as error:
        if isinstance(error, SourceError):
            raise
        raise file.broken(error, "an MDS shard") from error
    if count != shard.samples:
        raise file.broken(f"it holds {count} samples and its index counts {shard.samples}", "an MDS shard")
    for number in range(count):
        sample = content[offsets[number] : offsets[number + 1]]
        place = f"{file.name}:{number + 1}"
        try:
            row = SourceRow(place, _values(sample, shard))
        except (struct.error, ValueError) as error:
            row = SourceRow(place, fault=f"the sample is not valid MDS: {error}")
        yield row


def _unpacked(content: bytes, shard: Shard) -> bytes:
    kind = str(shard.compression).partition(":")[0]
    if kind in ("gz", "bz2"):
        return gzip.decompress(content) if kind == "gz" else bz2.decompress(content)
    if kind not in PACKED:
        raise ValueError(f"compression {kind!r} is none of gz, bz2, {', '.join(PACKED)}")
    return bytes(pa.Codec(PACKED[kind]).decompress(content, shard.raw_data.bytes, asbytes=True))


def _verify(file: SourceFile, content: bytes, shard: Shard) -> None:
    """Holds the unpacked shard against its size and those hashes of the index that hashlib knows."""
    raw = shard.raw_data
    if len(content) != raw.bytes:
        raise file.broken(f"it has {len(content)} of {raw.bytes} bytes", "an MDS shard")
    for name, digest in raw.hashes.items():
        if name in hashlib.algorithms_guaranteed and hashlib.new(name, content).hexdigest() != digest:
            raise file.broken(f"its {name} differs from the index", "an MDS shard")


def _values(sample: bytes, shard: Shard) -> dict[str, Any]:
    sizes, at = [], 0
    for fixed in shard.column_sizes:
        sizes.append(fixed or struct.unpack_from("<I", sample, at)[0])
        at += 0 if fixed else 4
    if at + sum(sizes) != len(sample):
        raise ValueError(f"columns take {at + sum(sizes)} bytes and the sample has {len(sample)}")
    values = {}
    for name, encoding, size in zip(shard.column_names, shard.column_encodings, sizes, strict=True):
        values[name] = _decoded(name, encoding, sample[at : at + size])
        at += size
    return values


def _decoded(name: str, encoding: str, value: bytes) -> Any:
    """A value by its encoding; text stays bytes, which lands as text or, in a media column, as media."""
    kind = encoding.partition(":")[0]
    if kind in ("bytes", "jpeg", "png"):
        return value
    if kind in ("str", "str_int", "str_float", "str_decimal", "json"):
        return _text(name, value)
    if kind in SCALARS:
        return struct.unpack(SCALARS[kind], value)[0]
    if kind == "pil":
        return _png(name, value)
    if kind == "pkl":
        return Fault(f"{name} is a pickle, which could run code and is never opened")
    return Fault(f"{name} has the MDS encoding {encoding!r}, which does not land; write it as bytes, str, json or png")


def _text(name: str, value: bytes) -> str | Fault:
    try:
        return value.decode()
    except UnicodeError:
        return Fault(f"{name} is not valid UTF-8 text")


def _png(name: str, value: bytes) -> bytes | Fault:
    """Raw pixels (width, height, length of the mode, mode, pixels) as a PNG file."""
    try:
        width, height, length = struct.unpack_from("<3I", value)
        image = Image.frombytes(value[12 : 12 + length].decode(), (width, height), value[12 + length :])
        file = io.BytesIO()
        image.save(file, "PNG")
    except (struct.error, ValueError, OSError) as error:
        return Fault(f"{name} is no image of raw pixels: {error}")
    return file.getvalue()
