"""What a person asks of checkpoints: which there are, whether they are whole, and where two of them differ."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasmo.model.fragments import MANIFEST, WEIGHT, CheckpointError, FragmentReader, Manifest, read_manifest
from elasmo.model.stores import Store, open_store
from elasmo.parallel.layout import Layout
from elasmo.train import retention
from elasmo.train.run_folder import checkpoint_root


@dataclass(frozen=True)
class Listed:
    """A committed checkpoint: `kept_as` says why retention never removes it."""

    step: int
    url: str
    bytes: int
    files: int
    tensors: int
    layout: str
    kept_as: tuple[str, ...]


@dataclass(frozen=True)
class Verified:
    """A checkpoint that was read whole; `problem` is the sentence of what is wrong, None if nothing is."""

    name: str
    bytes: int
    seconds: float
    problem: str | None

    @property
    def gb_s(self) -> float:
        """10^9 bytes a second."""
        return self.bytes / 1e9 / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Change:
    """A tensor's state that differs: norm of the difference over the norm of the first, and the largest difference."""

    tensor: str
    state: str
    relative: float
    largest: float


@dataclass(frozen=True)
class Difference:
    """What two checkpoints do not share. `settings` alone makes no difference to the tensors."""

    settings: tuple[str, ...]
    structure: tuple[str, ...]
    tensors: tuple[Change, ...]
    compared: int = field(default=0)


def listed(where: str) -> tuple[list[Listed], int]:
    """The committed checkpoints of a run or below a folder or URL, oldest first, and how many are not committed.

    Raises:
        CheckpointError: there is nothing of the kind, or a manifest is damaged.
    """
    root, places = _find(where)
    marks = _marks(Path(where)) if (Path(where) / "run.json").is_file() else {}
    whole = [_list(place, marks, place is places[-1]) for place in places]
    uncommitted = sum(name.startswith("step-") for name in root.children()) - len(places)
    return whole, max(0, uncommitted)


def verified(where: str) -> Iterator[Verified]:
    """Reads one checkpoint, or all of a run, and says of each what is wrong with it.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    for place in _find(where)[1]:
        started, size, problem = time.perf_counter(), 0, None
        try:
            with retention.reading(place):
                reader = FragmentReader(place)
                size = reader.manifest.bytes()
                reader.verify()
        except CheckpointError as error:
            problem = str(error)
        yield Verified(place.name, size, time.perf_counter() - started, problem)


def compare(first: str, second: str, moments: bool = False) -> Difference:
    """Compares two checkpoints tensor by tensor, whatever layouts wrote them.

    Raises:
        CheckpointError: one is absent or damaged.
    """
    with retention.reading(first), retention.reading(second):
        ours, theirs = FragmentReader(first), FragmentReader(second)
        structure, changes, compared = [], [], 0
        for name in sorted({*ours.manifest.shapes, *theirs.manifest.shapes}):
            shapes = [reader.manifest.shapes.get(name) for reader in (ours, theirs)]
            if shapes[0] != shapes[1]:
                said = ["is absent" if shape is None else f"has shape {shape}" for shape in shapes]
                structure.append(f"{name} {said[0]} in {first}, {said[1]} in {second}")
                continue
            states = [reader.states(name) if moments else (WEIGHT,) for reader in (ours, theirs)]
            if states[0] != states[1]:
                structure.append(f"{name} holds {', '.join(states[0])} in {first}, {', '.join(states[1])} in {second}")
            for state in (state for state in states[0] if state in states[1]):
                a, b = ours.tensor(name, state), theirs.tensor(name, state)
                compared += 1
                if not a.equal(b):
                    scale, gap = float(a.norm()), a - b
                    relative = float(gap.norm()) / scale if scale else float("inf")
                    changes.append(Change(name, state, relative, float(gap.abs().max())))
        settings = _settings(ours.manifest, theirs.manifest)
    return Difference(tuple(settings), tuple(structure), tuple(changes), compared)


def _find(where: str) -> tuple[Store, list[Store]]:
    """The folder of checkpoints that a user means, and the committed ones; `where` may be one of them."""
    store = open_store(where)
    if MANIFEST in store.files() and store.name.startswith("step-"):
        return store, [store]
    root = checkpoint_root(Path(where)) if (Path(where) / "run.json").is_file() else store
    places = retention.committed(root)
    if not places:
        raise CheckpointError(
            f"{where} holds no committed checkpoint; name a run's folder, a folder or URL of checkpoints, or one."
        )
    return root, places


def _list(place: Store, marks: Mapping[str, list[str]], newest: bool) -> Listed:
    manifest = read_manifest(place)
    kept = [*marks.get(place.name, ()), *(["newest"] if newest else [])]
    return Listed(
        step=manifest.step,
        url=place.url,
        bytes=manifest.bytes(),
        files=len(manifest.files),
        tensors=len(manifest.shapes),
        layout=_layout(manifest),
        kept_as=tuple(kept),
    )


def _layout(manifest: Manifest) -> str:
    if "imported" in manifest.meta:
        return f"DeepSpeed zero={manifest.meta['imported']['zero_stage']}"
    return str(Layout(**manifest.meta["layout"])) if "layout" in manifest.meta else "unknown layout"


def _marks(run: Path) -> dict[str, list[str]]:
    best = retention.read_best(run)
    marks: dict[str, list[str]] = {}
    if best is not None:
        marks[Path(best["path"]).name] = ["best"]
    for name in retention.pinned(run) - set(marks):
        marks[name] = ["published"]
    return marks


def _settings(ours: Manifest, theirs: Manifest) -> Iterator[str]:
    first, second = ({"step": m.step, **_flat(m.meta)} for m in (ours, theirs))
    for name in sorted({*first, *second}):
        a, b = first.get(name, "absent"), second.get(name, "absent")
        if a != b:
            yield f"{name}: {a} -> {b}"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
