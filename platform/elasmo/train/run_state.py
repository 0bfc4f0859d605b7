"""The run-state actor: owns the run folder, hears every rank and the controller, and outlives trainers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge

from elasmo.config import Config
from elasmo.model.stores import Store, open_store
from elasmo.train import retention, run_folder
from elasmo.train.checkpoint_restore import RestorePoint, restore_points
from elasmo.train.ledger import Ledger, RankStep, Restored, skipped_steps
from elasmo.train.memory_tier import MemoryTier
from elasmo.train.trackers import open_trackers

NAMESPACE = "elasmo"
CALL_TIMEOUT_S = 30.0
"""Deadline of a call to the run-state actor; it waits for nobody but the memory tier's holders."""


def actor_name(run_id: str) -> str:
    return f"elasmo-run-{run_id}"


@dataclass(frozen=True)
class Beginning:
    """What the ranks of a new attempt are told.

    Attributes:
        point: the checkpoint to start from, None at the start.
        skipped: steps that the run has skipped, or is to skip when they come again, and why.
        holders: names of the memory tier's actors; none where it is off.
    """

    attempt: int
    point: RestorePoint | None
    skipped: Mapping[int, str]
    holders: tuple[str, ...] = ()


class RunState:
    """Writes `log.jsonl`, hands out restore points, and answers what is committed. Lives on the driver's node."""

    def __init__(self, config: Config, folder: str, run_id: str) -> None:
        self.folder = Path(folder)
        self._ledger = Ledger()
        self._log = (self.folder / "log.jsonl").open("a", buffering=1)
        self._trackers = open_trackers(config, self.folder, run_id)
        self._window = (0, 0)
        self._points: list[RestorePoint] = []
        self._refused: list[RestorePoint] = []
        self._tier = MemoryTier(config, run_id, NAMESPACE)
        self._skipped = skipped_steps(run_folder.events(self.folder))
        tags = {"run": run_id}
        self._step = Gauge("elasmo_train_step", "Committed training steps", ("run",)).set_default_tags(tags)
        self._loss = Gauge("elasmo_train_loss", "Loss of the last committed step", ("run",)).set_default_tags(tags)
        self._world = Gauge("elasmo_train_world", "Training ranks", ("run",)).set_default_tags(tags)
        self._tokens = Counter("elasmo_train_tokens", "Tokens in committed steps", ("run",)).set_default_tags(tags)
        self._mfu = Gauge("elasmo_train_mfu", "Model FLOPs utilisation of a step", ("run",)).set_default_tags(tags)
        self._peak_flops: float | None = None
        self._resizes = Counter("elasmo_train_resizes", "Resizes of the worker group", ("run",)).set_default_tags(tags)

    def begin(self, world: int, plan: Mapping[str, Any], nodes: tuple[str, ...]) -> Beginning:
        """Starts an attempt at the newest checkpoint."""
        memory = self._tier.renew() if self._tier.on else []
        self._points = restore_points(retention.committed(run_folder.checkpoint_root(self.folder)), memory)
        self._refused = []
        point = self._points[0] if self._points else None
        start = point.step if point is not None else 0
        self._write(self._ledger.begin(time.time(), world, start, plan, nodes))
        attempt = self._ledger.attempts[-1].number
        self._window = (attempt, start)
        self._world.set(world)
        return Beginning(attempt, point, dict(self._skipped), self._tier.names)

    def device(self, facts: Mapping[str, Any]) -> None:
        """What a device of the run can do and costs."""
        self._peak_flops = facts.get("peak_flops")
        self._write({"event": "device", **facts})

    def older(self, attempt: int, refused: RestorePoint, reason: str) -> RestorePoint | None:
        """Where the attempt starts instead, now that its ranks have refused a checkpoint; None if nothing is left."""
        self._refused.append(refused)
        left = self._points[self._points.index(refused) + 1 :]
        point = left[0] if left else None
        self._write(self._ledger.fell_back(attempt, refused.step, reason, point.step if point is not None else None))
        if point is not None:
            self._window = (attempt, point.step)
        return point

    def window(self) -> tuple[int, int]:
        """(attempt, first step) of the current worker group."""
        return self._window

    def restored(self, attempt: int, read: Restored) -> None:
        """All ranks hold their weights; what they refused on the way counts no more."""
        self._ledger.restored(time.time(), attempt, read)
        for point in self._refused:
            if point.tier == "memory":
                self._tier.store().child(retention.folder_name(point.step)).clear()
            else:
                self._set_aside(open_store(point.url))

    def faulted(self, attempt: int, event: dict[str, Any]) -> None:
        """The ranks are about to give up: to skip a step when it comes again, or because weights are corrupted.

        Checkpoints that were written since the weights were last known to be right count no more.
        """
        event = {"event": "fault", "attempt": attempt, **event}
        self._write(event)
        self._skipped |= skipped_steps([event])
        if event["kind"] == "corruption":
            for place in retention.committed(run_folder.checkpoint_root(self.folder)):
                if retention.step_of(place.name) > event["clean_step"]:
                    self._set_aside(place)
            if self._tier.on:
                self._tier.store().clear()

    def rank_step(self, attempt: int, rank: int, report: RankStep) -> None:
        for event in self._ledger.rank_step(time.time(), attempt, rank, report):
            self._write(event)
            if event["event"] == "step":
                self._skipped |= skipped_steps([event])
                self._step.set(event["step"])
                if event["loss"] is not None:
                    self._loss.set(event["loss"])
                self._tokens.inc(max(1, event["tokens"]))
                if self._peak_flops:
                    self._mfu.set(event["flops"] / (event["seconds"]["step"] * event["world"] * self._peak_flops))
                self._track("train", event, ("loss", "lr", "grad_norm"), "loss_by_modality")
                self._track("seconds", event["seconds"], tuple(event["seconds"]), step=event["step"])
            else:
                self._resizes.inc()

    def evaluated(self, attempt: int, event: dict[str, Any]) -> None:
        self._write({"event": "eval", "attempt": attempt, **event})
        self._track("eval", event, ("loss",), "loss_by_modality")
        self._track("eval/accuracy", event["accuracy"], tuple(event["accuracy"]), step=event["step"])

    def checkpointed(self, attempt: int, event: dict[str, Any]) -> None:
        self._write({"event": "checkpoint", "attempt": attempt, **event})

    def failed(self, reason: str, lost: tuple[str, ...]) -> None:
        self._ledger.failed(time.time(), reason, lost)

    def fault_injected(self, when: float, what: str) -> None:
        self._ledger.fault_injected(when, what)

    def group_started(self) -> None:
        self._ledger.group_started(time.time())

    def progress(self) -> dict[str, Any]:
        """Committed step, attempts, world sizes, resizes: what a driver shows and a run's summary needs."""
        return {
            "step": self._ledger.committed,
            "attempts": len(self._ledger.attempts),
            "worlds": [attempt.world for attempt in self._ledger.attempts],
            "nodes": [list(attempt.nodes) for attempt in self._ledger.attempts],
            "resizes": self._ledger.resizes,
            "parameters": self._ledger.attempt.plan["parameters"] if self._ledger.attempt else None,
        }

    def receipts(self) -> dict[int, str]:
        """Receipt of every committed step."""
        return self._ledger.receipts

    def memorized(self, attempt: int, event: dict[str, Any]) -> None:
        """A checkpoint is in the memory tier, or could not be brought there."""
        self._write({"event": "memory_checkpoint", "attempt": attempt, **event})

    def close(self) -> None:
        self._tier.close()
        for tracker in self._trackers:
            tracker.close()
        self._log.close()

    def _set_aside(self, place: Store) -> None:
        retention.set_aside(place)
        best = retention.read_best(self.folder)
        if best is not None and Path(best["path"]).name == place.name:
            (self.folder / "best.json").unlink()

    def _write(self, event: dict[str, Any]) -> None:
        self._log.write(json.dumps({"time": round(time.time(), 3), **event}) + "\n")

    def _track(
        self, prefix: str, values: Mapping[str, Any], names: tuple[str, ...], nested: str = "", step: int | None = None
    ) -> None:
        scalars = {f"{prefix}/{name}": float(values[name]) for name in names if values[name] is not None}
        for name, value in values.get(nested, {}).items():
            if value is not None:
                scalars[f"{prefix}/{nested}/{name}"] = float(value)
        for tracker in self._trackers:
            tracker.scalars(scalars, int(values["step"]) if step is None else step)


class RunBusy(ValueError):
    """Another driver of this cluster is training the run."""


def start(config: Config, folder: Path, run_id: str) -> Any:
    """The run's state actor on this node; it ends with the driver that started it.

    Raises:
        RunBusy: the run has one already.
    """
    node = ray.get_runtime_context().get_node_id()
    try:
        return _start(config, folder, run_id, node)
    except ValueError as error:
        if "already" not in str(error):
            raise
        raise RunBusy(f"Run {run_id} is being trained by another driver; wait for it, or stop it first.") from None


def _start(config: Config, folder: Path, run_id: str, node: str) -> Any:
    actor = (
        ray.remote(RunState)
        .options(
            name=actor_name(run_id),
            namespace=NAMESPACE,
            num_cpus=0,
            max_concurrency=1,
            label_selector={"ray.io/node-id": node},
        )
        .remote(config, str(folder), run_id)
    )
    ray.get(actor.window.remote(), timeout=CALL_TIMEOUT_S)
    return actor


def connect(run_id: str) -> Any:
    """The run's state actor, from any process of the cluster."""
    return ray.get_actor(actor_name(run_id), namespace=NAMESPACE)
