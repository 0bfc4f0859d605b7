"""The folder of a run: its configuration, its summary, its log, and the check of its receipts against the plan."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from elasmo.config import Config, dump
from elasmo.data.gold_mixture import GoldMixture
from elasmo.data.plan import StepPlan
from elasmo.model.stores import Store, StoreError, open_store

PACKAGES = ("ray", "torch", "deepspeed", "pyarrow", "numpy", "elasmo")


@dataclass(frozen=True)
class ReceiptCheck:
    """What a run's receipts prove.

    Attributes:
        steps: committed steps.
        missing: steps of the run that no receipt speaks for.
        differing: steps whose rows were not the plan's.
        substituted: rows that did not decode and were replaced as the plan says, over all steps.
    """

    steps: int
    missing: tuple[int, ...]
    differing: tuple[int, ...]
    substituted: int = 0

    @property
    def match(self) -> bool:
        return not self.missing and not self.differing


def new_run_id(config: Config) -> str:
    return f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def pinned(config: Config, gold: GoldMixture) -> Config:
    """The same tree with the gold snapshots and absolute paths written in: every process must read the same bytes."""
    data = gold.pinned(config.data).model_copy(update={"lake": str(Path(config.data.lake).resolve())})
    starts = tuple(str(Path(source).resolve()) for source in config.train.init_from)
    storage = str(Path(config.train.storage).resolve())
    checkpoints = config.train.checkpoint_storage
    if checkpoints is not None and "://" not in checkpoints:
        checkpoints = str(Path(checkpoints).resolve())
    changes = {"storage": storage, "init_from": starts, "checkpoint_storage": checkpoints}
    train = config.train.model_copy(update=changes)
    return config.model_copy(update={"data": data, "train": train})


def create(config: Config, run_id: str, gold: GoldMixture) -> Path:
    """Makes the run folder, or takes up an unfinished run's.

    Raises:
        StoreError: the run's checkpoints are elsewhere than `train.checkpoint_storage` says now.
    """
    folder = (Path(config.train.storage) / run_id).resolve()
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    checkpoints = _checkpoint_place(folder, config.train.checkpoint_storage)
    (folder / "config.yaml").write_text(dump(config))
    # With this run's model configuration: its context length is the limit that serving keeps.
    gold.processor().with_model(config.model).save(folder / "processor")
    write_summary(
        folder,
        run=run_id,
        name=config.name,
        status="running",
        created=time.time(),
        gold={
            "lake": config.data.lake,
            "dataset": gold.name,
            "snapshot": gold.snapshot,
            "sources": [{"dataset": source.name, "snapshot": source.snapshot} for source in gold.golds],
        },
        seed=config.seed,
        checkpoints=checkpoints,
        steps=config.train.steps,
        versions=versions(),
    )
    return folder


def checkpoint_root(folder: Path) -> Store:
    """Where a run's checkpoints are: in its folder, or where `train.checkpoint_storage` said when it began.

    Raises:
        StoreError: that place cannot be opened.
    """
    summary = read_summary(folder) if (folder / "run.json").is_file() else {}
    return open_store(summary.get("checkpoints") or folder / "checkpoints")


def _checkpoint_place(folder: Path, storage: str | None) -> str | None:
    """Below `train.checkpoint_storage`, or where the run began; None for the run's folder."""
    place = None if storage is None else f"{storage.rstrip('/')}/{folder.name}"
    if not (folder / "run.json").is_file():
        return place
    known: str | None = read_summary(folder).get("checkpoints")
    if place not in (None, known):
        raise StoreError(
            f"train.checkpoint_storage={storage}, but run {folder.name} keeps its checkpoints in "
            f"{known or folder / 'checkpoints'}; leave the key out, or start a new run."
        )
    return known


def write_summary(folder: Path, **values: Any) -> None:
    """Adds to `run.json`, atomically."""
    path = folder / "run.json"
    summary = json.loads(path.read_text()) if path.is_file() else {}
    partial = folder / ".run.json"
    partial.write_text(json.dumps({**summary, **values}, indent=1))
    partial.rename(path)


def read_summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


class LogReader:
    """Reads a run log as it grows: each call returns the whole lines since the last."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log.jsonl"
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New events in order; a last line that is still being written is left for the next call."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as log:
            log.seek(self._offset)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def events(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Events of the run log so far, of one kind or of all."""
    return [event for event in LogReader(folder).read() if kind is None or event["event"] == kind]


def check_receipts(folder: Path, plan: StepPlan, steps: int) -> ReceiptCheck:
    """Compares the receipt of each committed step, the last attempt of a step counting, with the plan."""
    committed = {event["step"]: event for event in events(folder, "step")}
    swaps = {step: substituted(event) for step, event in committed.items()}
    wanted = range(1, steps + 1)
    return ReceiptCheck(
        steps=len(committed),
        missing=tuple(step for step in wanted if step not in committed),
        differing=tuple(
            step
            for step in wanted
            if step in committed and committed[step]["receipt"] != plan.receipt(step - 1, swaps[step])
        ),
        substituted=sum(len(swap) for swap in swaps.values()),
    )


def substituted(event: Mapping[str, Any]) -> dict[int, int]:
    """Row ids of a step that did not decode -> those that were read in their place."""
    return {row["planned"]: row["read"] for row in event.get("substituted", ())}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "from source" if package == "elasmo" else "absent"
    return found
