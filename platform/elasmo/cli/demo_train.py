"""The demo's training: a run that loses a node, and a control run that shows what the losses should have been."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from elasmo.config import Config
from elasmo.train.driver import RunResult, fit
from elasmo.train.local_cluster import LocalCluster
from elasmo.train.run_folder import LogReader, events

KILL_AT = 0.7
"""Part of the run after which a node is killed."""
COMPARED_STEPS = 10
CONTROL = "control"
POLL_S = 0.05


@dataclass(frozen=True)
class Trained:
    """The run and what the loss of a node did to it.

    Attributes:
        resize: the resize event.
        compared: steps after the resize whose losses were compared.
        difference: their largest relative difference from a run of the new size from the same checkpoint.
    """

    result: RunResult
    resize: dict[str, Any]
    compared: int
    difference: float
    tokens_per_s: dict[str, float]


def train(
    config: Config, cluster: LocalCluster, on_start: Callable[[str, Path, Any], None], say: Callable[[str], None]
) -> Trained:
    """Trains, kills a node at `KILL_AT`, and repeats the first steps after the resize from the same checkpoint.

    Raises:
        TrainError: the run did not finish.
    """
    fault = _Fault(cluster, kill_step(config), say)

    def start(run_id: str, folder: Path, state: Any) -> None:
        on_start(run_id, folder, state)
        fault.start(folder, state)

    try:
        result = fit(config, on_start=start)
    finally:
        fault.stop()
    if not result.resizes:
        raise RuntimeError(f"No node was lost before the run ended; train.steps={config.train.steps} is too short.")
    resize = result.resizes[0]
    first, last = resize["restored_step"] + 1, min(resize["restored_step"] + COMPARED_STEPS, config.train.steps)
    say(f"Repeating steps {first} to {last} with {resize['to_world']} rank(s) from the same checkpoint, undisturbed")
    control = fit(control_config(config, result.folder, last, resize["to_world"]), run_id=CONTROL)
    ours, theirs = losses(result.folder), losses(control.folder)
    steps = range(first, last + 1)
    difference = max(abs(ours[step] - theirs[step]) / abs(theirs[step]) for step in steps)
    return Trained(result, resize, len(steps), difference, tokens_per_s(result.folder))


def kill_step(config: Config) -> int:
    """A step at about `KILL_AT` of the run, half-way between two checkpoints."""
    every = config.train.checkpoint_every
    return max(1, int(config.train.steps * KILL_AT) // every * every + every // 2)


def control_config(config: Config, folder: Path, last_step: int, world: int) -> Config:
    """The run's configuration for a second, shorter run of `world` ranks under the run's folder."""
    workers = config.train.workers.model_copy(update={"min": world, "max": world})
    train = config.train.model_copy(
        update={"storage": str(folder), "stop_after": last_step, "workers": workers, "keep_checkpoints": 5}
    )
    return config.model_copy(update={"train": train})


def losses(folder: Path) -> dict[int, float]:
    """Loss of each committed step, the last attempt of a step counting; not one that was not finite."""
    return {event["step"]: event["loss"] for event in events(folder, "step") if event["loss"] is not None}


def tokens_per_s(folder: Path) -> dict[str, float]:
    """Median decoder tokens a second of wall time for each number of ranks, warm-up steps left out."""
    rates: dict[str, list[float]] = {}
    for event in events(folder, "step"):
        rates.setdefault(str(event["world"]), []).append(event["tokens"] / event["seconds"]["step"])
    return {world: median(values[3:] or values) for world, values in rates.items()}


class _Fault:
    """Watches a run's log: kills a node at a step, then keeps the checkpoint that the run goes on from."""

    def __init__(self, cluster: LocalCluster, at_step: int, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._at_step = at_step
        self._say = say
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, folder: Path, state: Any) -> None:
        self._thread = threading.Thread(target=self._watch, args=(folder, state), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    def _watch(self, folder: Path, state: Any) -> None:
        reader, killed = LogReader(folder), False
        while not self._stop.wait(POLL_S):
            for event in reader.read():
                if event["event"] == "step" and event["step"] >= self._at_step and not killed:
                    killed = True
                    node, when = self._cluster.kill_node()
                    state.fault_injected.remote(when, f"node {node[:8]}")
                    self._say(f"Killed node {node[:8]} and its worker after step {event['step']}")
                elif event["event"] == "resize":
                    name = f"step-{event['restored_step']:06d}"
                    kept = folder / CONTROL / "checkpoints" / name
                    shutil.copytree(folder / "checkpoints" / name, kept)
                    return
