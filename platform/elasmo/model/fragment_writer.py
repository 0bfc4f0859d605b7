"""Writes fragments and commits them: files first, the manifest last; a checkpoint exists whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
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

Slice = tuple[str, int, Mapping[str, Tensor]]
"""Tensor name, start in the flattened box, and flat values of each state."""


def write_file(
    path: Path, slices: Iterable[Slice], boxes: Mapping[str, Box] | None = None
) -> tuple[FragmentFile, tuple[Fragment, ...]]:
    """Writes one file of fragments into a folder; see `write_fragments`."""
    return write_fragments(LocalStore(path.parent), path.name, slices, boxes)


def write_fragments(
    store: Store, name: str, slices: Iterable[Slice], boxes: Mapping[str, Box] | None = None
) -> tuple[FragmentFile, tuple[Fragment, ...]]:
    """Writes one file of fragments, durably, from tensors that must not change meanwhile.

    Args:
        name: of the file in the store.
        slices: what the caller owns.
        boxes: what of each tensor the caller holds, where that is not the whole of it.

    Returns:
        The file's record and its fragments, for the manifest.
    """
    values: dict[str, Tensor] = {}
    fragments: list[tuple[Fragment, Mapping[str, Tensor]]] = []
    for tensor, start, states in slices:
        count = next(iter(states.values())).numel()
        fragment = Fragment(tensor, start, start + count, name, (boxes or {}).get(tensor))
        values |= {fragment_key(fragment, state): part.detach().reshape(-1) for state, part in states.items()}
        fragments.append((fragment, states))
    specs = {key: TensorSpec(tensor_name(part.dtype), (part.numel(),)) for key, part in values.items()}
    written = stream_safetensors(store, name, specs, values.__getitem__, {})
    described = tuple(with_sums(fragment, states, specs, written.crc32) for fragment, states in fragments)
    return FragmentFile(name, written.bytes, written.sha256), described


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
