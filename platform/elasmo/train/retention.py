"""Which checkpoints there are, which stay and which go. Only committed ones count, and the newest is never removed.

A checkpoint that somebody reads carries a lease, a small file with a time until which it stays. Ranks of the run itself
need none: while they restore, nothing is committed, and only a commit removes anything.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from elasmo.model.fragments import MANIFEST
from elasmo.model.stores import Store, open_store

LEASE_S = 3600.0
DAMAGED = "manifest.damaged.json"
"""What the manifest of a checkpoint that was refused is called from then on."""
_LEASE = "reading-"


def folder_name(step: int) -> str:
    """The name of a step's checkpoint."""
    return f"step-{step:06d}"


def step_of(name: str) -> int:
    """The step in a checkpoint's name."""
    return int(name.removeprefix("step-"))


def committed(root: str | Path | Store) -> list[Store]:
    """Committed checkpoints, oldest step first; what was not committed is not listed."""
    return [place for place in _folders(open_store(root)) if MANIFEST in place.files()]


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
    """Names of checkpoints of a run that must stay: the best one and the published one."""
    best = read_best(folder)
    names = {Path(best["path"]).name} if best is not None else set()
    published = folder / "published" / MANIFEST
    if published.is_file():
        names.add(Path(json.loads(published.read_text())["weights"]["folder"]).name)
    return names


def prune(root: str | Path | Store, keep: int, pinned: set[str], now: Callable[[], float] = time.time) -> list[str]:
    """Removes committed checkpoints beyond the newest `keep`, and what dead writers left of steps before the newest.

    Those of `pinned` names stay, and those that somebody reads. The manifest goes first, so that a checkpoint that is
    half removed is none.

    Returns:
        Names of the removed checkpoints.
    """
    folders = _folders(open_store(root))
    whole = [place for place in folders if MANIFEST in place.files()]
    kept = {place.name for place in whole[max(0, len(whole) - max(1, keep)) :]} | pinned
    complete, newest = {place.name for place in whole}, step_of(whole[-1].name) if whole else 0
    removed = []
    for place in folders:
        surplus = place.name in complete and place.name not in kept
        left_over = place.name not in complete and step_of(place.name) < newest
        if (surplus or left_over) and not _leased(place, now()):
            place.remove(MANIFEST)
            place.clear()
            removed.append(place.name)
    return removed


def set_aside(place: Store) -> None:
    """Makes a damaged checkpoint none: it would count among the newest, and drive out one that is whole.

    Its files stay until a later step is committed; giving the manifest its name back undoes it.
    """
    with suppress(OSError):
        place.put(DAMAGED, bytes(place.read(MANIFEST)))
        place.remove(MANIFEST)


@contextmanager
def reading(
    place: str | Path | Store, lease_s: float = LEASE_S, now: Callable[[], float] = time.time
) -> Iterator[None]:
    """Keeps `prune` of any process from a checkpoint while it is read; where nothing can be written, it does not."""
    store, name = open_store(place), f"{_LEASE}{secrets.token_hex(4)}.json"
    with suppress(OSError):
        if MANIFEST in store.files():
            store.put(name, json.dumps({"until": now() + lease_s}).encode())
    try:
        yield
    finally:
        with suppress(OSError):
            store.remove(name)


def drop_unnamed(place: Store, named: set[str]) -> None:
    """Removes files of a committed checkpoint that its manifest does not name: what an earlier writer left."""
    if not _leased(place, time.time()):
        for name in place.files():
            if name not in named and name != MANIFEST and not name.startswith(_LEASE):
                place.remove(name)


def _folders(root: Store) -> list[Store]:
    names = [name for name in root.children() if re.fullmatch(r"step-\d+", name)]
    return [root.child(name) for name in sorted(names, key=step_of)]


def _leased(place: Store, now: float) -> bool:
    for name in place.files():
        if name.startswith(_LEASE):
            with suppress(OSError, ValueError, KeyError, TypeError):
                if float(json.loads(bytes(place.read(name)))["until"]) > now:
                    return True
    return False
