"""Training checkpoints: every rank writes the fragments it owns, the manifest comes last, any layout reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from elasmo.model.fragments import (
    MANIFEST,
    WEIGHT,
    CheckpointError,
    FragmentReader,
    Manifest,
    commit,
    split_evenly,
    write_file,
)
from elasmo.parallel.mesh import Mesh
from elasmo.parallel.shards import Shard
from elasmo.train import deepspeed_adapter
from elasmo.train.deepspeed_adapter import MOMENTS, OwnedSlice

Gather = Callable[[Any], list[Any]]
"""Collects one object from every rank, in rank order, on every rank."""


def folder_name(step: int) -> str:
    return f"step-{step:06d}"


def committed(root: Path) -> list[Path]:
    """Folders of committed checkpoints, oldest step first; what was not committed is not listed."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.name.startswith("step-") and (path / MANIFEST).is_file())


def save(
    engine: Any,
    root: Path,
    step: int,
    meta: Mapping[str, Any],
    rank: int,
    attempt: int,
    gather: Gather,
    parallel: tuple[Mesh, Mapping[str, Shard]],
) -> Manifest:
    """Writes a checkpoint of `step` from all ranks and commits it; a collective call.

    Args:
        engine: DeepSpeed engine after `step` optimizer steps.
        root: folder of the run's checkpoints, reachable by every rank.
        meta: what training resumes with, stored in the manifest.
        attempt: number of the worker group; a dead attempt's half-written files are never mixed with this one's.
        gather: all-gather of Python objects over ranks.
        parallel: the layout's groups and what this rank holds of each tensor.

    Returns:
        The committed manifest, on every rank.
    """
    temporary = root / f".{folder_name(step)}.attempt-{attempt}"
    temporary.mkdir(parents=True, exist_ok=True)
    gather(None)  # the folder exists before anyone writes
    mesh, shards = parallel
    copies = mesh.zero.rank, mesh.zero.size
    slices = (
        (name, start, states)
        for name, start, states in chain(_written_slices(engine, *copies), _frozen_slices(engine, *copies))
        if shards[name].counted
    )
    boxes = {name: shard.box for name, shard in shards.items() if shard.is_cut}
    path = temporary / f"rank-{rank:05d}.safetensors"
    record, fragments = write_file(path, slices, boxes)
    if not fragments:
        path.unlink()  # every copy that counts is elsewhere
    shapes = {name: shards[name].shape for name in deepspeed_adapter.local_shapes(engine)}
    records = gather((record, fragments, shapes))
    manifest = Manifest(
        step=step,
        shapes={name: shape for _, _, shapes in records for name, shape in shapes.items()},
        states=(WEIGHT, *MOMENTS),
        fragments=tuple(fragment for _, parts, _ in records for fragment in parts),
        files=tuple(file for file, parts, _ in records if parts),
        meta=meta,
    )
    if rank == 0:
        commit(temporary, root / folder_name(step), manifest)
    gather(None)  # nobody goes on before the checkpoint exists
    return manifest


def load(
    engine: Any, folder: Path, shards: Mapping[str, Shard], shapes: Mapping[str, tuple[int, ...]]
) -> FragmentReader:
    """Restores masters, moments and counters of this rank from a checkpoint of any layout into any other.

    Args:
        shards: what this rank holds of each tensor.
        shapes: of all tensors of the whole model.

    Raises:
        CheckpointError: damaged or foreign checkpoint; the engine must then not be used.
    """
    reader = FragmentReader(folder)
    for name, shape in shapes.items():
        found = reader.manifest.shapes.get(name)
        if found != shape:
            raise CheckpointError(
                f"{folder}: tensor {name!r} has shape {found}, the model needs {shape}; use the run's config."
            )
    foreign = sorted(set(reader.manifest.shapes) - set(shapes))
    if foreign:
        raise CheckpointError(
            f"{folder} holds tensor {foreign[0]!r}, which the model lacks; use the run's model config."
        )
    for owned in deepspeed_adapter.owned_slices(engine):
        for state, view in _states(owned).items():
            view.copy_(reader.read(owned.name, state, owned.start, owned.stop, shards[owned.name].box))
    for name, start, values in deepspeed_adapter.frozen_slices(engine):
        values.copy_(reader.read(name, WEIGHT, start, start + values.numel(), shards[name].box))
    deepspeed_adapter.finish_load(engine, int(reader.manifest.meta["optimizer_step"]))
    return reader


def check_cursor(manifest: Manifest, cursor: Mapping[str, Any], folder: str) -> None:
    """Refuses to go on from a checkpoint under another plan: samples would be repeated and others never read.

    Raises:
        CheckpointError: names the first setting that differs.
    """
    for name, wanted in cursor.items():
        saved = manifest.meta["cursor"].get(name)
        if saved != wanted:
            raise CheckpointError(
                f"{folder} was written under {name}={saved}, this run has {wanted}; resume with the run's own config."
            )


def write_best(folder: Path, name: str, metric: str, value: float) -> None:
    """Records, atomically, which checkpoint scored best; `prune` keeps it."""
    partial = folder / ".best.json"
    partial.write_text(json.dumps({"path": f"checkpoints/{name}", "metric": metric, "value": value}))
    partial.rename(folder / "best.json")


def read_best(folder: Path) -> dict[str, Any] | None:
    """The record of `write_best`, None before the first evaluation."""
    path = folder / "best.json"
    return dict(json.loads(path.read_text())) if path.is_file() else None


def pinned(folder: Path) -> set[str]:
    """Names of checkpoint folders that must stay: the best one and the published one."""
    best = read_best(folder)
    names = {Path(best["path"]).name} if best is not None else set()
    published = folder / "published" / MANIFEST
    if published.is_file():
        names.add(Path(json.loads(published.read_text())["weights"]["folder"]).name)
    return names


def prune(root: Path, keep: int, pinned: set[str]) -> list[str]:
    """Removes committed checkpoints beyond the newest `keep`, except `pinned` names, and leftovers of dead writes.

    Returns:
        Names of the removed folders.
    """
    removed = []
    folders = committed(root)
    for path in folders[: max(0, len(folders) - keep)]:
        if path.name not in pinned:
            shutil.rmtree(path)
            removed.append(path.name)
    newest = folders[-1].name if folders else ""
    for path in root.glob(".step-*"):
        if path.name.split(".")[1] <= newest:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path.name)
    return removed


def _states(owned: OwnedSlice) -> dict[str, Tensor]:
    return {WEIGHT: owned.weight, MOMENTS[0]: owned.exp_avg, MOMENTS[1]: owned.exp_avg_sq}


def _written_slices(engine: Any, rank: int, world: int) -> Iterator[tuple[str, int, dict[str, Tensor]]]:
    """What this rank writes of trained tensors; under ZeRO 0, where all `world` copies are the same, an even part."""
    owned = {s.name: s for s in deepspeed_adapter.owned_slices(engine)}
    if deepspeed_adapter.zero_stage(engine) > 0:
        # ZeRO's partitions are whole ranges: a rank owns at most one of a tensor.
        yield from ((s.name, s.start, _states(s)) for s in owned.values())
        return
    shapes = {name: shape for name, shape in deepspeed_adapter.local_shapes(engine).items() if name in owned}
    for name, start, stop in split_evenly(shapes, rank, world):
        yield name, start, {state: values[start:stop] for state, values in _states(owned[name]).items()}


def _frozen_slices(engine: Any, rank: int, world: int) -> Iterator[tuple[str, int, dict[str, Tensor]]]:
    """What this rank writes of tensors that are not trained; of whole copies an even part."""
    held = {name: (start, values) for name, start, values in deepspeed_adapter.frozen_slices(engine)}
    if deepspeed_adapter.zero_stage(engine) == 3:
        yield from ((name, start, {WEIGHT: values}) for name, (start, values) in held.items())
        return
    shapes = {name: (values.numel(),) for name, (_, values) in held.items()}
    for name, start, stop in split_evenly(shapes, rank, world):
        yield name, start, {WEIGHT: held[name][1][start:stop]}
