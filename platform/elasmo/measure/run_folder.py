"""Reads a run folder as training, publishing and serving leave it: what is not there yet is empty, never invented."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasmo.measure.run_log import RunLog
from elasmo.measure.run_log import read as read_log


class RunFolderError(ValueError):
    """A run folder that cannot be reported on, in one sentence."""


@dataclass(frozen=True)
class RunFolder:
    """A run's files as plain data."""

    path: Path
    run: Mapping[str, Any]  # run.json
    log: RunLog
    config: str = ""  # config.yaml, as text
    best: Mapping[str, Any] = field(default_factory=dict)
    demo: Mapping[str, Any] = field(default_factory=dict)
    served: Sequence[Mapping[str, Any]] = ()
    published: bool = False
    tensorboard: bool = False

    @property
    def best_step(self) -> int | None:
        """Step of the checkpoint that best.json names (`checkpoints/step-000400`); None without one."""
        digits = re.search(r"step-(\d+)$", str(self.best.get("path", "")))
        return int(digits[1]) if digits else None


def find(run: str, storage: Path) -> Path:
    """The folder of a run given as a path or as its id below `storage`.

    Raises:
        RunFolderError: neither is a folder; names the runs that are there.
    """
    for path in (Path(run), storage / run):
        if path.is_dir():
            return path
    known = sorted((path.parent.name for path in storage.glob("*/run.json")), reverse=True)
    there = f"{storage} holds {', '.join(known[:5])}" if known else f"{storage} holds no run"
    raise RunFolderError(f"No run {run!r}; {there}. Give a run's id or the path of its folder.")


def read(path: Path) -> RunFolder:
    """The run in `path`.

    Raises:
        RunFolderError: no log in it, or a file of it that is not JSON.
        RunLogError: an event of its log is not usable.
    """
    log = path / "log.jsonl"
    if not log.is_file():
        raise RunFolderError(
            f"{path} is not a run folder: it has no log.jsonl. Give the folder that `elasmo train` made."
        )
    config = path / "config.yaml"
    return RunFolder(
        path=path,
        run=_json(path / "run.json"),
        log=read_log(log),
        config=config.read_text(encoding="utf-8") if config.is_file() else "",
        best=_json(path / "best.json"),
        demo=_json(path / "demo.json"),
        served=_json_lines(path / "served.jsonl"),
        published=(path / "published" / "manifest.json").is_file(),
        tensorboard=(path / "tensorboard").is_dir(),
    )


def _json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} is not JSON: {error}. Restore it or delete it.") from None
    if not isinstance(value, dict):
        raise RunFolderError(f"{path} holds a {type(value).__name__}, not an object. Restore it or delete it.")
    return value


def _json_lines(path: Path) -> list[Mapping[str, Any]]:
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            if line.strip():
                rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise RunFolderError(f"{path} line {number} is not JSON: {error}. Mend or delete the line.") from None
    return rows
