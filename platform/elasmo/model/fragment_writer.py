"""Writes fragments and commits them: files first, the manifest last; a checkpoint exists whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from elasmo.model.boxes import Box
from elasmo.model.fragments import (
    MANIFEST,
    Fragment,
    FragmentFile,
    Manifest,
    Stored,
    check_cover,
    encode_manifest,
    fragment_key,
)
from elasmo.model.safetensors_stream import TensorSpec, stream_safetensors, tensor_name
from elasmo.model.stores import LocalStore, Store, sync_folder

FRAGMENT_ELEMENTS = 16 << 20
Written = tuple[FragmentFile, tuple[Fragment, ...]]


@dataclass(frozen=True)
class Piece:
    """Values that somebody writes: a flat range of a tensor, or of a box of it, in every state that is stored.

    Attributes:
        start: of the values in the flattened box.
        states: flat values of each state, all of one length.
    """

    tensor: str
    start: int
    states: Mapping[str, Tensor]
    box: Box | None = None

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.states.values())


def write_file(path: Path, slices: Iterable[tuple[str, int, Mapping[str, Tensor]]]) -> Written:
    """Writes one file of fragments of whole tensors into a folder, from (tensor, start, values of each state)."""
    return write_fragments(LocalStore(path.parent), path.name, (Piece(*part) for part in slices))


def write_fragments(store: Store, name: str, pieces: Iterable[Piece]) -> Written:
    """Writes one file of fragments, durably, from tensors that must not change meanwhile.

    Args:
        name: of the file in the store.

    Returns:
        The file's record and its fragments, for the manifest.
    """
    values: dict[str, Tensor] = {}
    fragments: list[tuple[Fragment, Mapping[str, Tensor]]] = []
    for piece in (part for whole in pieces for part in _bounded(whole)):
        count = next(iter(piece.states.values())).numel()
        fragment = Fragment(piece.tensor, piece.start, piece.start + count, name, piece.box)
        values |= {fragment_key(fragment, state): part.detach().reshape(-1) for state, part in piece.states.items()}
        fragments.append((fragment, piece.states))
    specs = {key: TensorSpec(tensor_name(part.dtype), (part.numel(),)) for key, part in values.items()}
    written = stream_safetensors(store, name, specs, values.__getitem__, {})
    described = tuple(with_sums(fragment, states, specs, written.crc32) for fragment, states in fragments)
    return FragmentFile(name, written.bytes, written.sha256), described


def _bounded(piece: Piece) -> Iterator[Piece]:
    """A piece in parts of at most `FRAGMENT_ELEMENTS`: a reader that needs a few elements reads their part whole."""
    count = next(iter(piece.states.values())).numel()
    for start in range(0, count, FRAGMENT_ELEMENTS):
        states = {state: part[start : start + FRAGMENT_ELEMENTS] for state, part in piece.states.items()}
        yield replace(piece, start=piece.start + start, states=states)


def with_sums(
    fragment: Fragment, states: Iterable[str], specs: Mapping[str, TensorSpec], crc32: Mapping[str, int]
) -> Fragment:
    """The fragment with what its values must be found as."""
    keys = {state: fragment_key(fragment, state) for state in states}
    return replace(fragment, states={state: Stored(specs[key].dtype, crc32[key]) for state, key in keys.items()})


def describe_file(path: Path) -> FragmentFile:
    """Syncs a written file to disk and records what it must be found as."""
    with path.open("rb") as written:
        os.fsync(written.fileno())
        written.seek(0)
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    return FragmentFile(path.name, path.stat().st_size, digest)


def put_manifest(store: Store, manifest: Manifest) -> None:
    """Commits what lies in a store; an earlier commit there is replaced in one step.

    Raises:
        CheckpointError: the fragments leave a gap or overlap.
    """
    check_cover(manifest, store.url)
    store.put(MANIFEST, encode_manifest(manifest))


def commit(temporary: Path, final: Path, manifest: Manifest) -> None:
    """Commits a folder that was made aside by giving it its name; what had the name before goes.

    Raises:
        CheckpointError: the fragments leave a gap or overlap.
    """
    check_cover(manifest, str(final))
    LocalStore(temporary).put(MANIFEST, encode_manifest(manifest))
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    sync_folder(final.parent)
