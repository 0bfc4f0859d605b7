"""Training checkpoints: every rank writes the fragments it owns, the manifest comes last, any layout reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from elasmo.model.fragment_writer import Piece
from elasmo.model.fragments import WEIGHT, CheckpointError, FragmentReader, Manifest, check_cover, split_evenly
from elasmo.model.stores import Store
from elasmo.parallel.mesh import Mesh
from elasmo.parallel.shards import Shard
from elasmo.train import deepspeed_adapter
from elasmo.train.checkpoint_commit import Gather, write
from elasmo.train.deepspeed_adapter import MOMENTS, OwnedSlice
from elasmo.train.snapshot import Snapshot


def save(
    engine: Any,
    root: str | Path | Store,
    step: int,
    meta: Mapping[str, Any],
    rank: int,
    gather: Gather,
    parallel: tuple[Mesh, Mapping[str, Shard]],
) -> Manifest:
    """Writes a checkpoint of `step` from all ranks and commits it before it returns; a collective call.

    Args:
        engine: DeepSpeed engine after `step` optimizer steps.
        root: of the run's checkpoints, reachable by every rank.
        meta: what training resumes with, stored in the manifest.
        gather: all-gather of Python objects over ranks.
        parallel: the layout's groups and what this rank holds of each tensor.

    Returns:
        The committed manifest, on every rank.
    """
    return write(take(engine, parallel), root, step, meta, rank, gather)


def load(
    engine: Any, folder: str | Path | Store, shards: Mapping[str, Shard], shapes: Mapping[str, tuple[int, ...]]
) -> FragmentReader:
    """Restores masters, moments and counters of this rank from a checkpoint of any layout into any other.

    Args:
        shards: what this rank holds of each tensor.
        shapes: of all tensors of the whole model.

    Raises:
        CheckpointError: damaged or foreign checkpoint; the engine must then not be used.
    """
    reader = read(engine, folder, shards, shapes)
    finish(engine, reader)
    return reader


def read(
    engine: Any, folder: str | Path | Store, shards: Mapping[str, Shard], shapes: Mapping[str, tuple[int, ...]]
) -> FragmentReader:
    """The part of `load` that is this rank's alone: no collective, so that a rank may fail where others do not.

    Nothing that was read counts before `finish`; another checkpoint may be read over it.

    Raises:
        DamagedCheckpoint: its bytes are not those that were written; another one may do.
        CheckpointError: it is of another model.
    """
    reader = FragmentReader(folder)
    for name, shape in shapes.items():
        found = reader.manifest.shapes.get(name)
        if found != shape:
            raise CheckpointError(
                f"{reader.folder}: tensor {name!r} has shape {found}, the model needs {shape}; use the run's config."
            )
    foreign = sorted(set(reader.manifest.shapes) - set(shapes))
    if foreign:
        raise CheckpointError(
            f"{reader.folder} holds tensor {foreign[0]!r}, which the model lacks; use the run's model config."
        )
    check_cover(reader.manifest, reader.folder)
    state_of(reader.manifest, "optimizer_step", reader.folder)
    for owned in deepspeed_adapter.owned_slices(engine):
        for state, view in _states(owned).items():
            view.copy_(reader.read(owned.name, state, owned.start, owned.stop, shards[owned.name].box))
    for name, start, values in deepspeed_adapter.frozen_slices(engine):
        values.copy_(reader.read(name, WEIGHT, start, start + values.numel(), shards[name].box))
    return reader


def finish(engine: Any, reader: FragmentReader) -> None:
    """Makes what every rank has read take effect; a collective call."""
    step = state_of(reader.manifest, "optimizer_step", reader.folder)
    deepspeed_adapter.finish_load(engine, int(step))


def take(engine: Any, parallel: tuple[Mesh, Mapping[str, Shard]]) -> Snapshot:
    """What this rank writes, as views into the engine's memory; `HostBuffers.copy` makes it safe from the next step.

    Args:
        engine: DeepSpeed engine between two optimizer steps.
        parallel: the layout's groups and what this rank holds of each tensor.
    """
    mesh, shards = parallel
    copies = mesh.zero.rank, mesh.zero.size
    parts = chain(_trained(engine, *copies), _frozen(engine, *copies))
    return Snapshot(
        pieces=tuple(
            replace(part, box=shards[part.tensor].box if shards[part.tensor].is_cut else None)
            for part in parts
            if shards[part.tensor].counted
        ),
        shapes={name: shards[name].shape for name in deepspeed_adapter.local_shapes(engine)},
    )


def state_of(manifest: Manifest, name: str, folder: str) -> Any:
    """A part of what training resumes with.

    Raises:
        CheckpointError: the checkpoint does not have it.
    """
    if name not in manifest.meta:
        raise CheckpointError(
            f"{folder} has no {name}: training cannot go on where it stopped; use another step, or start a new run "
            "from its weights with train.init_from."
        )
    return manifest.meta[name]


def check_resumable(manifest: Manifest, cursor: Mapping[str, Any], processor_hash: str, folder: str) -> None:
    """Refuses to go on without a data state, under another plan or with another tokenizer.

    Samples would be repeated and others never read, or token ids would mean something else, and no loss would tell.

    Raises:
        CheckpointError: names the first setting that is missing or differs.
    """
    saved = state_of(manifest, "cursor", folder)
    for name, wanted in cursor.items():
        if name not in saved:
            raise CheckpointError(f"{folder} does not say which {name} its data was read under; use another step.")
        if saved[name] != wanted:
            raise CheckpointError(
                f"{folder} was written under {name}={saved[name]}, this run has {wanted}; resume with the run's own "
                "config."
            )
    if state_of(manifest, "processor_hash", folder) != processor_hash:
        raise CheckpointError(
            f"{folder} was trained with another tokenizer or processor than the data has; use the run's own gold "
            "snapshot."
        )


def _states(owned: OwnedSlice) -> dict[str, Tensor]:
    """Master weight and moments under the names of a checkpoint."""
    return {WEIGHT: owned.weight, MOMENTS[0]: owned.exp_avg, MOMENTS[1]: owned.exp_avg_sq}


def _trained(engine: Any, rank: int, world: int) -> Iterator[Piece]:
    """What this rank writes of trained tensors; under ZeRO 0, where all `world` copies are the same, an even part."""
    owned = {s.name: s for s in deepspeed_adapter.owned_slices(engine)}
    if deepspeed_adapter.zero_stage(engine) > 0:
        # ZeRO's partitions are whole ranges: a rank owns at most one of a tensor.
        yield from (Piece(s.name, s.start, _states(s)) for s in owned.values())
        return
    shapes = {name: shape for name, shape in deepspeed_adapter.local_shapes(engine).items() if name in owned}
    for name, start, stop in split_evenly(shapes, rank, world):
        yield Piece(name, start, {state: values[start:stop] for state, values in _states(owned[name]).items()})


def _frozen(engine: Any, rank: int, world: int) -> Iterator[Piece]:
    """What this rank writes of tensors that are not trained; of whole copies an even part."""
    held = {name: (start, values) for name, start, values in deepspeed_adapter.frozen_slices(engine)}
    if deepspeed_adapter.zero_stage(engine) == 3:
        yield from (Piece(name, start, {WEIGHT: values}) for name, (start, values) in held.items())
        return
    shapes = {name: (values.numel(),) for name, (_, values) in held.items()}
    for name, start, stop in split_evenly(shapes, rank, world):
        yield Piece(name, start, {WEIGHT: held[name][1][start:stop]})
