"""`fit(config)`: trains on the Ray cluster this process is connected to, and returns what the run proved."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.data
from ray.train import RunConfig

from elasmo.config import Config
from elasmo.data.openlineage_events import Artifact, LineageEvents
from elasmo.data.stream import TRAIN, PlanDataConfig, make_plan, open_gold
from elasmo.measure import run_log
from elasmo.measure.meter import Metering, meter
from elasmo.measure.verdict import verdict
from elasmo.parallel import planner
from elasmo.train import ray_adapter, run_folder, run_state
from elasmo.train.loop import LoopSettings, train_loop
from elasmo.train.memory_tier import MemoryTierError, check_budget, object_stores_mb
from elasmo.train.preflight import preflight
from elasmo.train.run_folder import ReceiptCheck, pinned

logger = logging.getLogger(__name__)

CONTROLLER_RESTARTS = 2
"""How often a lost training controller is replaced; Ray does not restart it."""


class TrainError(ValueError):
    """A run that could not be finished, with the reason in a sentence."""


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        receipts: committed rows against the plan.
        resizes: the resize events of the log.
        evaluation: the last evaluation event, None if there was none.
        metering: MFU, cost, energy, and where every second of every rank went.
        verdict: what held the run up most, in a sentence.
    """

    run_id: str
    folder: Path
    steps: int
    seconds: float
    receipts: ReceiptCheck
    resizes: tuple[dict[str, Any], ...]
    evaluation: dict[str, Any] | None
    metering: Metering
    verdict: str


def fit(
    config: Config, run_id: str | None = None, on_start: Callable[[str, Path, Any], None] | None = None
) -> RunResult:
    """Trains until `train.steps` steps are committed, whatever number of workers comes and goes.

    Args:
        config: the whole tree; the gold snapshot must exist (`elasmo ingest`).
        run_id: an unfinished run to take up at its last checkpoint; a new run when None.
        on_start: called with (run id, run folder, run-state actor) once the run exists.

    Raises:
        GoldError: no usable gold snapshot.
        LineageEventsError: `data.openlineage` cannot be written.
        ConfigError, LayoutError, LoraError, FreezeError, CheckpointError, PublishedError: see `preflight`.
        RunBusy: the run is being trained by another driver of this cluster.
        TrainError: the failure budget is spent, or a worker hit an error of the user's making.
    """
    started = time.time()
    gold = open_gold(config)
    config = pinned(config, gold)
    sizes = preflight(config, gold, run_id)
    events = LineageEvents(config.data.openlineage)
    if not ray.is_initialized():
        _connect(config.ray.address)
    _check_memory(config)
    run_id = run_id or run_folder.new_run_id(config)
    try:
        folder = run_folder.create(config, run_id, gold)
    except OSError as error:
        raise TrainError(f"train.storage={config.train.storage} cannot be written: {error}; name another.") from None
    state = run_state.start(config, folder, run_id)
    if on_start is not None:
        on_start(run_id, folder, state)
    try:
        with events.job(f"train.{config.name}", [source.artifact for source in gold.golds]) as made:
            _supervise(config, run_id, folder, sizes)
            made.append(Artifact(str(folder), run_id))
    except BaseException as error:
        sentence = ray_adapter.user_error(error) or f"Training stopped: {str(error) or type(error).__name__}"
        run_folder.write_summary(folder, status="failed", finished=time.time(), error=sentence)
        if isinstance(error, Exception):
            raise TrainError(f"{sentence} The run is in {folder}.") from error
        raise
    finally:
        progress = ray.get(state.progress.remote(), timeout=run_state.CALL_TIMEOUT_S)
        run_folder.write_summary(folder, world_sizes=progress["worlds"], attempts=progress["attempts"])
        ray.get(state.close.remote(), timeout=run_state.CALL_TIMEOUT_S)
        ray.kill(state)
    check = run_folder.check_receipts(folder, make_plan(config, gold), config.train.last_step)
    evaluations = run_folder.events(folder, "eval")
    seconds = time.time() - started
    metering = meter(run_log.read(folder / "log.jsonl"))
    told = verdict(metering.booking, config.model_dump())
    run_folder.write_summary(
        folder,
        status="succeeded",
        finished=time.time(),
        seconds=seconds,
        parameters=progress["parameters"],
        receipts_match_plan=check.match,
        rows_substituted=check.substituted,
        metering={**metering.as_dict(), "verdict": told},
    )
    return RunResult(
        run_id=run_id,
        folder=folder,
        steps=check.steps,
        seconds=seconds,
        receipts=check,
        resizes=tuple(run_folder.events(folder, "resize")),
        evaluation=evaluations[-1] if evaluations else None,
        metering=metering,
        verdict=told,
    )


def _connect(address: str) -> None:
    try:
        ray.init(address=address, logging_level=logging.WARNING)
    except ConnectionError:
        raise TrainError(
            f"ray.address is {address!r}, but no Ray cluster answers there; run `ray start --head` first, or set "
            "ray.address=local for a cluster of this run's own."
        ) from None


def _check_memory(config: Config) -> None:
    if config.train.memory.every is not None:
        try:
            check_budget(config.train.memory, config.data.lookahead_mb, object_stores_mb())
        except MemoryTierError as error:
            raise TrainError(str(error)) from None


def _supervise(config: Config, run_id: str, folder: Path, sizes: Sequence[int]) -> None:
    ray_adapter.apply_timeouts(config.train.workers)
    for restart in range(CONTROLLER_RESTARTS + 1):
        try:
            _trainer(config, run_id, folder, sizes).fit()
            return
        except ray.exceptions.RayActorError:
            if restart == CONTROLLER_RESTARTS:
                raise
            logger.warning("The training controller died; starting another from the last checkpoint.", exc_info=True)


def _trainer(config: Config, run_id: str, folder: Path, sizes: Sequence[int]) -> ray_adapter.ElasticTrainer:
    workers = config.train.workers
    name = run_state.actor_name(run_id)
    trainer = ray_adapter.ElasticTrainer(
        train_loop,
        train_loop_config={"settings": LoopSettings(config, run_id, str(folder))},
        torch_config=ray_adapter.torch_config(workers),
        scaling_config=ray_adapter.scaling_config(workers, ray.cluster_resources()),
        run_config=RunConfig(
            name=run_id,
            storage_path=str(folder / "ray"),
            failure_config=ray_adapter.failure_config(workers),
            callbacks=[ray_adapter.PhaseCallback(name, run_state.NAMESPACE)],
        ),
        datasets={TRAIN: ray.data.range(1)} if config.data.engine == "ray" else {},
        dataset_config=PlanDataConfig(
            config, name, run_state.NAMESPACE, functools.partial(planner.slot_readers, config.train)
        ),
    )
    trainer.wait_s = workers.wait_s
    trainer.sizes = sizes
    return trainer
