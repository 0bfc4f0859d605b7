"""Checkpoint fragments: flat ranges of boxes of named tensors in safetensors files, with one manifest written last.

A fragment says which elements of which full tensor it holds, never which rank wrote it, so any layout reads any
other's checkpoint without a conversion step. Bytes that differ from the manifest are refused by the tensor's name.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elasmo.model.boxes import Box, intersection, volume, whole, within
from elasmo.model.safetensors_stream import DTYPES, Span, read_header
from elasmo.model.stores import Store, open_store

FORMAT = 2
WEIGHT = "weight"
MANIFEST = "manifest.json"
VERIFY_BYTES = 8 << 20
ADVICE = "; restore the file or use another step."
"""How the sentence of a damaged file ends."""


class CheckpointError(ValueError):
    """A checkpoint that is absent, incomplete or damaged, named by file and tensor."""


class DamagedCheckpoint(CheckpointError):
    """What should be there is not, or is not what was written; another checkpoint of the run may do."""


@dataclass(frozen=True)
class Stored:
    """One state's values of a fragment: dtype by the format's name, such as `F32`, and CRC-32 of the bytes."""

    dtype: str
    crc32: int


@dataclass(frozen=True)
class Fragment:
    """Elements [start, stop) of a flattened box of the tensor `tensor`, held in `file` for every state.

    A box is what tensor or expert parallelism leaves a rank of a tensor; without one it is the whole tensor.
    """

    tensor: str
    start: int
    stop: int
    file: str
    box: Box | None = None
    states: Mapping[str, Stored] = field(default_factory=dict)


@dataclass(frozen=True)
class FragmentFile:
    """One file as it must be found: name, size in bytes, SHA-256."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All that a checkpoint holds.

    Attributes:
        step: training steps that are in the weights.
        shapes: full shape of every tensor.
        states: what is stored of each element: `weight` and, of what is trained, optimizer moments.
        fragments: together they cover every element of every tensor exactly once.
        files: the files the fragments lie in.
        meta: what training resumes with: plan cursor, optimizer scalars, configuration, data and processor hashes.
    """

    step: int
    shapes: Mapping[str, tuple[int, ...]]
    states: tuple[str, ...]
    fragments: tuple[Fragment, ...]
    files: tuple[FragmentFile, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def encode_manifest(manifest: Manifest) -> bytes:
    """A manifest's JSON, with the SHA-256 of the rest in front."""
    body = json.loads(json.dumps(asdict(manifest)))
    return json.dumps({"sha256": _own_sha256(body), **body}, indent=1, sort_keys=True).encode()


def read_manifest(folder: str | Path | Store) -> Manifest:
    """The manifest of a committed checkpoint.

    Raises:
        DamagedCheckpoint: there is none, or it is not one of ours, or was altered.
    """
    store = open_store(folder)
    path = f"{store.url}/{MANIFEST}"
    try:
        raw = json.loads(bytes(store.read(MANIFEST)))
        manifest = parse_manifest(raw)
        known = raw.pop("sha256") == _own_sha256(raw)
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedCheckpoint(f"{store.url} has no {MANIFEST}: it is not a committed checkpoint; name one.") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedCheckpoint(
            f"{path} is not a checkpoint manifest of format {FORMAT}: {error}; use a checkpoint of this version."
        ) from None
    if not known:
        raise DamagedCheckpoint(f"{path} was altered: its SHA-256 does not fit{ADVICE}")
    return manifest


def parse_manifest(raw: Mapping[str, Any]) -> Manifest:
    """A manifest from its JSON form."""
    if raw["format"] != FORMAT:
        raise ValueError(f"format is {raw['format']}, this version reads {FORMAT}")
    return Manifest(
        step=int(raw["step"]),
        shapes={name: tuple(shape) for name, shape in raw["shapes"].items()},
        states=tuple(raw["states"]),
        fragments=tuple(_parse_fragment(item) for item in raw["fragments"]),
        files=tuple(FragmentFile(**item) for item in raw["files"]),
        meta=raw["meta"],
    )


def _parse_fragment(item: Mapping[str, Any]) -> Fragment:
    box = None if item["box"] is None else tuple((low, high) for low, high in item["box"])
    states = {state: Stored(**stored) for state, stored in item["states"].items()}
    return Fragment(**{**item, "box": box, "states": states})


def _own_sha256(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class FragmentReader:
    """Reads any part of any tensor from a checkpoint, checking the bytes of every fragment that it reads.

    Args:
        folder: a folder, a URL of fsspec, or a store.
    """

    def __init__(self, folder: str | Path | Store, manifest: Manifest | None = None) -> None:
        self.store = open_store(folder)
        self.folder = self.store.url
        self.manifest = manifest if manifest is not None else read_manifest(self.store)
        self.bytes_read = 0
        self._by_box = by_box(self.manifest)
        self._files = {file.name: file for file in self.manifest.files}
        self._headers: dict[str, dict[str, Span]] = {}

    def read(
        self, tensor: str, state: str, start: int, stop: int, box: Box | None = None, as_stored: bool = False
    ) -> Tensor:
        """Values [start, stop) of a flattened box of a tensor's state, [stop - start].

        Args:
            box: the part of the full tensor that the caller holds; the whole tensor if None.
            as_stored: in the dtype of the file; float32 else.

        Raises:
            CheckpointError: unknown tensor or state, missing or damaged file, uncovered range.
        """
        if tensor not in self._by_box:
            raise CheckpointError(f"{self.folder} holds no tensor {tensor!r}; it was written for another model.")
        dtype = DTYPES[self.dtype(tensor, state)] if as_stored else torch.float32
        stored = self._by_box[tensor]
        wanted = whole(self.manifest.shapes[tensor]) if box is None else box
        if wanted in stored:
            return self._read_flat(tensor, state, wanted, start, stop, dtype)
        # Other boxes than the wanted one: put together the rows that the range touches, then cut the range out.
        row = math.prod(high - low for low, high in wanted[1:])
        top = wanted[0][0]
        first, last = start // row, -(-stop // row)
        rows: Box = ((top + first, top + last), *wanted[1:])
        out = torch.empty([high - low for low, high in rows], dtype=dtype)
        filled = 0
        for source in stored:
            common = intersection(source, rows)
            if common is not None:
                out[within(common, rows)] = self._read_rows(tensor, state, source, common, dtype)
                filled += volume(common)
        if filled != volume(rows):
            raise DamagedCheckpoint(f"{self.folder} lacks elements of tensor {tensor!r} in {rows}.")
        return out.view(-1)[start - first * row : stop - first * row]

    def tensor(self, name: str, state: str = WEIGHT) -> Tensor:
        """A whole tensor in its full shape, float32."""
        shape = self.manifest.shapes.get(name)
        if shape is None:
            raise CheckpointError(f"{self.folder} holds no tensor {name!r}; it was written for another model.")
        return self.read(name, state, 0, math.prod(shape)).reshape(shape)

    def dtype(self, tensor: str, state: str = WEIGHT) -> str:
        """The format's name of a tensor's dtype, such as `BF16`."""
        return self._stored(next(iter(self._by_box[tensor].values()))[0], state).dtype

    def states(self, tensor: str) -> tuple[str, ...]:
        """What is stored of a tensor: `weight` and, if it was trained, optimizer moments."""
        return tuple(next(iter(self._by_box[tensor].values()))[0].states)

    def verify(self) -> None:
        """Reads every file and compares size and SHA-256, once the fragments are known to cover every tensor.

        Raises:
            CheckpointError: names the first file that is missing or differs, and the tensor that it differs in.
        """
        check_cover(self.manifest, self.folder)
        for file in self.manifest.files:
            digest, reached = hashlib.sha256(), 0
            held = next((part for part in self.manifest.fragments if part.file == file.name), None)
            if held is not None:
                self._header(held)
            while reached < file.bytes:
                chunk = self._bytes(file.name, reached, min(file.bytes, reached + VERIFY_BYTES), held)
                digest.update(chunk)
                reached += len(chunk)
            if digest.hexdigest() == file.sha256:
                continue
            for fragment in self.manifest.fragments:
                if fragment.file == file.name:
                    for state in fragment.states:
                        self._load(fragment, state)
            raise self._differs(file.name, "outside its tensors")

    def _read_rows(self, tensor: str, state: str, source: Box, part: Box, dtype: torch.dtype) -> Tensor:
        """A part of a stored box, read by whole rows of that box."""
        row = math.prod(high - low for low, high in source[1:])
        low, high = part[0][0] - source[0][0], part[0][1] - source[0][0]
        values = self._read_flat(tensor, state, source, low * row, high * row, dtype)
        rows: Box = (part[0], *source[1:])
        return values.view([b - a for a, b in rows])[within(part, rows)]

    def _read_flat(self, tensor: str, state: str, box: Box, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        out = torch.empty(stop - start, dtype=dtype)
        reached = start
        for fragment in self._by_box[tensor][box]:
            low, high = max(start, fragment.start), min(stop, fragment.stop)
            if low >= high:
                continue
            if low != reached:
                break
            values = self._load(fragment, state)
            out[low - start : high - start] = values[low - fragment.start : high - fragment.start]
            reached = high
        if reached != stop:
            raise DamagedCheckpoint(f"{self.folder} lacks elements {reached}:{stop} of tensor {tensor!r}.")
        return out

    def _load(self, fragment: Fragment, state: str) -> Tensor:
        """A whole fragment's values of a state, once their bytes are known to be those that were written."""
        stored, name = self._stored(fragment, state), fragment.file
        span = self._header(fragment).get(fragment_key(fragment, state))
        what = f"in {state!r} of tensor {fragment.tensor!r}, elements {fragment.start}:{fragment.stop}"
        if span is None or span.spec.dtype != stored.dtype or span.spec.shape != (fragment.stop - fragment.start,):
            raise self._differs(name, what)
        data = self._bytes(name, span.start, span.stop, fragment)
        if zlib.crc32(data) != stored.crc32:
            raise self._differs(name, what)
        self.bytes_read += len(data)
        raw = torch.empty(len(data), dtype=torch.uint8)
        raw.numpy()[:] = np.frombuffer(data, np.uint8)
        return raw.view(DTYPES[stored.dtype])

    def _stored(self, fragment: Fragment, state: str) -> Stored:
        if state not in fragment.states:
            raise DamagedCheckpoint(
                f"{self.folder}/{fragment.file} lacks state {state!r} of tensor {fragment.tensor!r}."
            )
        return fragment.states[state]

    def _header(self, fragment: Fragment) -> dict[str, Span]:
        name = fragment.file
        if name not in self._headers:
            try:
                size = self.store.size(name)
            except FileNotFoundError:
                raise self._missing(fragment) from None
            if size != self._files[name].bytes:
                wanted = f"has {size} bytes, not {self._files[name].bytes}"
                raise self._differs(name, f"({wanted}); it holds tensor {fragment.tensor!r}")
            try:
                self._headers[name] = read_header(self.store, name)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                what = f"in its header ({error}); it holds tensor {fragment.tensor!r}"
                raise self._differs(name, what) from None
        return self._headers[name]

    def _bytes(self, name: str, start: int, stop: int, fragment: Fragment | None) -> bytes:
        try:
            data = self.store.read(name, start, stop)
        except FileNotFoundError:
            if fragment is None:
                raise DamagedCheckpoint(f"{self.folder}/{name} is missing; restore the file.") from None
            raise self._missing(fragment) from None
        if len(data) != stop - start:
            raise self._differs(name, f"(it ends at byte {start + len(data)})")
        return data

    def _missing(self, fragment: Fragment) -> DamagedCheckpoint:
        return DamagedCheckpoint(
            f"{self.folder}/{fragment.file} is missing; it holds tensor {fragment.tensor!r}{ADVICE}"
        )

    def _differs(self, name: str, what: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(f"{self.folder}/{name} differs from its manifest {what}{ADVICE}")


def by_box(manifest: Manifest) -> dict[str, dict[Box, list[Fragment]]]:
    """Fragments of each box of each tensor, in order."""
    found: dict[str, dict[Box, list[Fragment]]] = {}
    for fragment in sorted(manifest.fragments, key=lambda item: (item.tensor, item.start)):
        box = whole(manifest.shapes[fragment.tensor]) if fragment.box is None else fragment.box
        found.setdefault(fragment.tensor, {}).setdefault(box, []).append(fragment)
    return found


def check_cover(manifest: Manifest, place: str) -> None:
    """Refuses fragments that do not make up every element of every tensor exactly once, in the same states.

    Raises:
        DamagedCheckpoint: names the first such tensor.
    """
    stored = by_box(manifest)
    for name, shape in manifest.shapes.items():
        boxes = stored.get(name, {})
        for box, fragments in boxes.items():
            reached = 0
            for fragment in fragments:
                if fragment.start != reached:
                    raise DamagedCheckpoint(
                        f"{place}: fragments of {name!r} leave or repeat {reached}:{fragment.start}."
                    )
                reached = fragment.stop
            if reached != volume(box):
                raise DamagedCheckpoint(f"{place}: fragments of {name!r} end at {reached} of {box}.")
        overlap = any(intersection(a, b) is not None for a, b in combinations(boxes, 2))
        if overlap or sum(map(volume, boxes)) != math.prod(shape):
            raise DamagedCheckpoint(f"{place}: the parts of {name!r} do not make up its shape {tuple(shape)}.")
        kinds = {tuple(sorted(part.states)) for fragments in boxes.values() for part in fragments}
        if len(kinds) > 1:
            raise DamagedCheckpoint(f"{place}: fragments of {name!r} hold unlike states: {sorted(kinds)}.")


def fragment_key(fragment: Fragment, state: str) -> str:
    """The name of a fragment's values in its file."""
    box = "" if fragment.box is None else "@" + ",".join(f"{low}:{high}" for low, high in fragment.box)
    return f"{fragment.tensor}{box}/{state}/{fragment.start}"


def split_evenly(shapes: Mapping[str, Sequence[int]], rank: int, world: int) -> list[tuple[str, int, int]]:
    """What `rank` of `world` writes of replicated tensors: (name, start, stop), contiguous and near-equal."""
    total = sum(math.prod(shape) for shape in shapes.values())
    first, last = rank * total // world, (rank + 1) * total // world
    parts, offset = [], 0
    for name, shape in shapes.items():
        numel = math.prod(shape)
        low, high = max(first - offset, 0), min(last - offset, numel)
        if low < high:
            parts.append((name, low, high))
        offset += numel
    return parts
