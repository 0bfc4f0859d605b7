"""The one place that knows Ray Train's insides: a scaling policy that never starts at a size that is gone, and timing.

Private names used here are pinned to Ray 2.60 and covered by a contract test.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.train import FailureConfig, Result, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.controller.state import (
    ErroredState,
    ReschedulingState,
    RestartingState,
)
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2._internal.execution.failure_handling.default import DefaultFailurePolicy
from ray.train.v2._internal.execution.scaling_policy import (
    ElasticScalingPolicy,
    NoopDecision,
    ScalingDecision,
)
from ray.train.v2._internal.execution.scaling_policy.autoscaling_coordinator_client import (
    AUTOSCALING_REQUESTS_GET_TIMEOUT_S,
)
from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError

from elasmo.config import WorkersConfig

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 0.5
FATAL_ERRORS = (
    "CheckpointError",
    "ConfigError",
    "FreezeError",
    "GoldError",
    "GoldRowError",
    "LayoutError",
    "LoraError",
    "NotEnoughWorkers",
    "NumericalError",
    "PackingError",
    "PublishedError",
    "StoreError",
)
"""Errors of a user's making, by class name: trying again gives the same."""


def apply_timeouts(workers: WorkersConfig) -> None:
    """Puts the run's timeouts where Ray Train reads them; call it in the driver before `fit`."""
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = str(workers.health_check_s)
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(workers.start_timeout_s)


def torch_config(workers: WorkersConfig) -> TorchConfig:
    return TorchConfig(
        backend="nccl" if workers.use_gpu else "gloo", timeout_s=max(1, round(workers.collective_timeout_s))
    )


def worker_resources(workers: WorkersConfig, cluster: Mapping[str, float]) -> dict[str, float]:
    """What one worker reserves on a cluster with these total resources.

    A GPU where the config says so; else a `trainer`, and no CPU, where nodes offer trainers: they then never compete
    with Ray Data's tasks for CPU slots. Clusters whose nodes offer none reserve `workers.cpus` of a CPU.
    """
    if workers.use_gpu:
        return {"GPU": 1.0, "CPU": workers.cpus}
    if workers.trainer > 0 and cluster.get("trainer", 0.0) > 0:
        return {"trainer": workers.trainer, "CPU": 0.0}
    return {"CPU": max(workers.cpus, 0.01)}


def scaling_config(workers: WorkersConfig, cluster: Mapping[str, float]) -> ScalingConfig:
    """Workers from `min` to `max`: elastic also where both are the same, so that a lost worker is waited for."""
    return ScalingConfig(
        num_workers=(workers.min, workers.max),
        use_gpu=workers.use_gpu,
        resources_per_worker=worker_resources(workers, cluster),
    )


class NotEnoughWorkers(ValueError):
    """The cluster did not offer the smallest number of workers in time."""


class ElasticPolicy(ElasticScalingPolicy):
    """Sizes the worker group from a fresh view of the cluster, and only once nodes that do not answer are known dead.

    Ray's own policy decides on a cached view, so after losing a node it first tries the old size until the worker-group
    start timeout passes.

    Args:
        sizes: numbers of workers that the run's layout allows; any in the range if None.
    """

    GET_RESERVED_RESOURCES_INTERVAL_S = 0.2

    def __init__(self, scaling_config: ScalingConfig, wait_s: float, sizes: Sequence[int] | None = None) -> None:
        super().__init__(scaling_config)
        self._wait_s = wait_s
        self._sizes = sizes
        self._waiting_since: float | None = None

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        silent = unreachable(ray.nodes())
        if silent:
            logger.info("Waiting for the cluster to give up node(s) that refuse connections: %s", ", ".join(silent))
            return self._wait()
        decision = super().make_decision_for_non_running_worker_group()
        if isinstance(decision, NoopDecision):
            return self._wait()
        self._waiting_since = None
        return decision

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        """The largest size that a layout allows; workers beyond it stay idle."""
        possible: int = super()._count_possible_workers(reserved_resources)
        if self._sizes is None:
            return possible
        return max((size for size in self._sizes if size <= possible), default=0)

    def _wait(self) -> NoopDecision:
        now = time.monotonic()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if now - self._waiting_since > self._wait_s:
            needed = self.scaling_config._resources_per_worker_not_none
            fewest = self.scaling_config.min_workers if self._sizes is None else min(self._sizes)
            raise NotEnoughWorkers(
                f"The cluster offered no {fewest} worker(s) with {needed} each within "
                f"{self._wait_s:g} s (train.workers.wait_s); add nodes or lower train.workers.min."
            )
        return NoopDecision()

    def _get_reserved_resources(self) -> Any:
        try:
            self._latest_reserved_resources = ray.get(
                self._autoscaling_coordinator.get_reserved_resources.remote(self._requester_id, recompute=True),
                timeout=AUTOSCALING_REQUESTS_GET_TIMEOUT_S,
            )
        except ray.exceptions.RayError:
            logger.warning("The autoscaling coordinator did not answer; keeping the last view.", exc_info=True)
        return self._latest_reserved_resources


def unreachable(nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Ids of nodes that the cluster calls alive but whose raylet refuses TCP connections."""
    silent = []
    for node in nodes:
        if not node["Alive"]:
            continue
        try:
            socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), PROBE_TIMEOUT_S).close()
        except OSError:
            silent.append(node["NodeID"])
    return silent


class FailFastOnUserErrors(DefaultFailurePolicy):
    """Retries lost nodes and dead workers, and gives up at once on errors that would come back unchanged."""

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        if isinstance(training_failed_error, WorkerGroupError):
            for failure in training_failed_error.worker_failures.values():
                if user_error(failure) is not None:
                    return FailureDecision.RAISE
        return super().make_decision(training_failed_error)


def user_error(error: BaseException | None) -> str | None:
    """The sentence of a user's mistake somewhere in a chain of wrapped errors, None if there is none."""
    for link in _chain(error):
        if any(kind.__name__ in FATAL_ERRORS for kind in type(link).__mro__):
            return str(link.args[0]) if link.args else str(link)
        for failure in getattr(link, "worker_failures", {}).values():
            sentence = user_error(failure)
            if sentence is not None:
                return sentence
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it wraps, in Ray's manners and Python's; cut off where it goes round."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = getattr(error, "cause", None) or getattr(error, "health_check_failure", None) or error.__cause__
        error = inner if isinstance(inner, BaseException) else None


def _is_death(error: BaseException) -> bool:
    return isinstance(error, ray.exceptions.RayActorError | ray.exceptions.NodeDiedError)


class PhaseCallback(ControllerCallback, WorkerGroupCallback):
    """Tells the run state when the controller sees a failure and when a new worker group stands."""

    def __init__(self, run_state: str, namespace: str) -> None:
        self.run_state = run_state
        self.namespace = namespace

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        if isinstance(current_state, RestartingState | ReschedulingState | ErroredState):
            error = getattr(current_state, "training_failed_error", None)
            lost = tuple(f"rank {rank}" for rank in sorted(_dead_ranks(error)))
            self._tell("failed", _reason(error), lost)

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._tell("group_started")

    def _tell(self, method: str, *args: Any) -> None:
        # Never waits: the run state must not be able to hold up the controller.
        getattr(ray.get_actor(self.run_state, namespace=self.namespace), method).remote(*args)


def _dead_ranks(error: Any) -> list[int]:
    failures = getattr(error, "worker_failures", {})
    return [rank for rank, failure in failures.items() if any(_is_death(link) for link in _chain(failure))]


def _reason(error: Any) -> str:
    dead = _dead_ranks(error)
    if dead:
        return f"lost the worker of rank {', '.join(map(str, sorted(dead)))}"
    if error is None:
        return "worker group resized"
    for rank, failure in sorted(getattr(error, "worker_failures", {}).items()):
        # A survivor often notices first: its collective breaks before the cluster knows that the peer's node is gone.
        innermost = list(_chain(failure))[-1]
        line = (str(innermost).strip().splitlines() or [""])[0]
        return f"rank {rank} stopped: {type(innermost).__name__}: {line[:120]}"
    return type(error).__name__


class ElasticTrainer(TorchTrainer):
    """Ray's torch trainer with Elasmo's scaling and failure policies in the controller."""

    wait_s = 300.0
    sizes: Sequence[int] | None = None

    def _initialize_and_run_controller(self, **controller_init_kwargs: Any) -> Result:
        controller_init_kwargs["scaling_policy"] = ElasticPolicy(self.scaling_config, self.wait_s, self.sizes)
        policy: FailurePolicy = FailFastOnUserErrors(self.run_config.failure_config)
        controller_init_kwargs["failure_policy"] = policy
        return super()._initialize_and_run_controller(**controller_init_kwargs)


def failure_config(workers: WorkersConfig) -> FailureConfig:
    return FailureConfig(max_failures=workers.max_failures)
