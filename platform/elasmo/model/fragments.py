"""Checkpoint fragments: flat ranges of boxes of named tensors in safetensors files, with one manifest written last.

A fragment says which elements of which full tensor it holds, never which rank wrote it, so any layout reads any
other's checkpoint without a conversion step. A file whose bytes differ from the manifest is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elasmo.model.safetensors_stream import DTYPES

FORMAT = 1
WEIGHT = "weight"
MANIFEST = "manifest.json"


class CheckpointError(ValueError):
    """A checkpoint that is absent, incomplete or damaged, named by file and tensor."""


Box = tuple[tuple[int, int], ...]
"""[start, stop) along each dimension of a full tensor."""


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


@dataclass(frozen=True)
class FragmentFile:
    """One safetensors file as it must be found: name, size in bytes, SHA-256."""

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


def write_file(
    path: Path, slices: Iterable[tuple[str, int, Mapping[str, Tensor]]], boxes: Mapping[str, Box] | None = None
) -> tuple[FragmentFile, tuple[Fragment, ...]]:
    """Writes one file of fragments and syncs it to disk.

    Args:
        path: the file to write.
        slices: (tensor name, start, flat values of each state) of what the caller owns.
        boxes: what of each tensor the caller holds, where that is not the whole of it.

    Returns:
        The file's record and its fragments, for the manifest.
    """
    tensors: dict[str, Tensor] = {}
    fragments = []
    for name, start, states in slices:
        count = next(iter(states.values())).numel()
        fragment = Fragment(name, start, start + count, path.name, (boxes or {}).get(name))
        for state, values in states.items():
            tensors[fragment_key(fragment, state)] = values.detach().cpu().reshape(-1).contiguous().clone()
        fragments.append(fragment)
    save_file(tensors, str(path))
    return describe_file(path), tuple(fragments)


def describe_file(path: Path) -> FragmentFile:
    """Syncs a written file to disk and records what it must be found as."""
    with path.open("rb") as written:
        os.fsync(written.fileno())
    return FragmentFile(path.name, path.stat().st_size, _sha256(path))


def commit(temporary: Path, final: Path, manifest: Manifest) -> None:
    """Writes the manifest last and renames the folder: the checkpoint exists whole, or not at all.

    Raises:
        CheckpointError: the fragments leave a gap or overlap.
    """
    _check_cover(manifest, final)
    text = json.dumps(asdict(manifest), indent=1, sort_keys=True)
    partial = temporary / f".{MANIFEST}"
    with partial.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    partial.rename(temporary / MANIFEST)
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a committed checkpoint.

    Raises:
        CheckpointError: there is none, or it is not one of ours.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {MANIFEST}: it is not a committed checkpoint; name one that has.")
    try:
        raw = json.loads(path.read_text())
        return parse_manifest(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a checkpoint manifest of format {FORMAT}: {error}.") from None


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
    box = item.get("box")
    return Fragment(**{**item, "box": None if box is None else tuple((low, high) for low, high in box)})


class FragmentReader:
    """Reads any part of any tensor from a checkpoint folder, checking each file's bytes before its first use."""

    def __init__(self, folder: Path, manifest: Manifest | None = None) -> None:
        self.folder = folder
        self.manifest = manifest if manifest is not None else read_manifest(folder)
        self.bytes_read = 0
        self._verified: set[str] = set()
        self._by_box = _by_box(self.manifest)
        self._files = {file.name: file for file in self.manifest.files}

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
        wanted = _whole(self.manifest.shapes[tensor]) if box is None else box
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
            common = _intersection(source, rows)
            if common is not None:
                out[_within(common, rows)] = self._read_rows(tensor, state, source, common, dtype)
                filled += _volume(common)
        if filled != _volume(rows):
            raise CheckpointError(f"{self.folder} lacks elements of tensor {tensor!r} in {rows}.")
        return out.view(-1)[start - first * row : stop - first * row]

    def dtype(self, tensor: str, state: str = WEIGHT) -> str:
        """The format's name of a tensor's dtype, such as `BF16`."""
        fragment = next(iter(self._by_box[tensor].values()))[0]
        self._verify(fragment.file)
        with safe_open(str(self.folder / fragment.file), framework="pt") as file:
            return str(file.get_slice(fragment_key(fragment, state)).get_dtype())

    def _read_rows(self, tensor: str, state: str, source: Box, part: Box, dtype: torch.dtype) -> Tensor:
        """A part of a stored box, read by whole rows of that box."""
        row = math.prod(high - low for low, high in source[1:])
        low, high = part[0][0] - source[0][0], part[0][1] - source[0][0]
        values = self._read_flat(tensor, state, source, low * row, high * row, dtype)
        rows: Box = (part[0], *source[1:])
        return values.view([b - a for a, b in rows])[_within(part, rows)]

    def _read_flat(self, tensor: str, state: str, box: Box, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        out = torch.empty(stop - start, dtype=dtype)
        reached = start
        for fragment in self._by_box[tensor][box]:
            low, high = max(start, fragment.start), min(stop, fragment.stop)
            if low >= high:
                continue
            values = self._load(fragment, state)
            out[low - start : high - start] = values[low - fragment.start : high - fragment.start]
            reached = high
        if reached != stop:
            raise CheckpointError(f"{self.folder} lacks elements {reached}:{stop} of tensor {tensor!r}.")
        return out

    def tensor(self, name: str, state: str = WEIGHT) -> Tensor:
        """A whole tensor in its full shape, float32."""
        shape = self.manifest.shapes.get(name)
        if shape is None:
            raise CheckpointError(f"{self.folder} holds no tensor {name!r}; it was written for another model.")
        return self.read(name, state, 0, math.prod(shape)).reshape(shape)

    def verify(self) -> None:
        """Reads every file and compares size and SHA-256.

        Raises:
            CheckpointError: names the first file that is missing or differs, and a tensor it holds.
        """
        for file in self.manifest.files:
            self._verify(file.name)

    def _load(self, fragment: Fragment, state: str) -> Tensor:
        self._verify(fragment.file)
        try:
            with safe_open(str(self.folder / fragment.file), framework="pt") as file:
                values: Tensor = file.get_tensor(fragment_key(fragment, state))
        except SafetensorError as error:
            raise CheckpointError(
                f"{self.folder / fragment.file} lacks state {state!r} of tensor {fragment.tensor!r}: {error}."
            ) from None
        self.bytes_read += values.numel() * values.element_size()
        return values

    def _verify(self, name: str) -> None:
        if name in self._verified:
            return
        path, expected = self.folder / name, self._files[name]
        held = next(fragment.tensor for fragment in self.manifest.fragments if fragment.file == name)
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; it holds tensor {held!r}; restore the file or use another step.")
        if path.stat().st_size != expected.bytes or _sha256(path) != expected.sha256:
            raise CheckpointError(
                f"{path} differs from its manifest (SHA-256 {expected.sha256[:12]}… expected); it holds {held!r}; "
                "restore the file or use another step."
            )
        self._verified.add(name)


def _check_cover(manifest: Manifest, folder: Path) -> None:
    stored = _by_box(manifest)
    for name, shape in manifest.shapes.items():
        boxes = stored.get(name, {})
        for box, fragments in boxes.items():
            reached = 0
            for fragment in fragments:
                if fragment.start != reached:
                    raise CheckpointError(
                        f"{folder}: fragments of {name!r} leave or repeat {reached}:{fragment.start}."
                    )
                reached = fragment.stop
            if reached != _volume(box):
                raise CheckpointError(f"{folder}: fragments of {name!r} end at {reached} of {box}.")
        overlap = any(_intersection(a, b) is not None for a, b in combinations(boxes, 2))
        if overlap or sum(map(_volume, boxes)) != math.prod(shape):
            raise CheckpointError(f"{folder}: the parts of {name!r} do not make up its shape {tuple(shape)}.")


def _by_box(manifest: Manifest) -> dict[str, dict[Box, list[Fragment]]]:
    """Fragments of each box of each tensor, in order."""
    found: dict[str, dict[Box, list[Fragment]]] = {}
    for fragment in sorted(manifest.fragments, key=lambda item: (item.tensor, item.start)):
        box = _whole(manifest.shapes[fragment.tensor]) if fragment.box is None else fragment.box
        found.setdefault(fragment.tensor, {}).setdefault(box, []).append(fragment)
    return found


def _whole(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def _volume(box: Box) -> int:
    return math.prod(high - low for low, high in box)


def _intersection(a: Box, b: Box) -> Box | None:
    common = tuple((max(low, lower), min(high, upper)) for (low, high), (lower, upper) in zip(a, b, strict=True))
    return common if all(low < high for low, high in common) else None


def _within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Where a box lies in a tensor that holds `outer`."""
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(box, outer, strict=True))


def fragment_key(fragment: Fragment, state: str) -> str:
    """The name of a fragment's values in its file."""
    box = "" if fragment.box is None else "@" + ",".join(f"{low}:{high}" for low, high in fragment.box)
    return f"{fragment.tensor}{box}/{state}/{fragment.start}"


def _sha256(path: Path) -> str:
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


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
