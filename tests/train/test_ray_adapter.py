"""What Elasmo takes from Ray Train's insides must be there, and mean what it meant, in the Ray that is installed."""

from __future__ import annotations

import inspect
import socket
from typing import Any

import pytest
import ray
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, NoopDecision, ResizeDecision
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from elasmo.config import WorkersConfig
from elasmo.model.fragments import CheckpointError
from elasmo.train import ray_adapter
from elasmo.train.ray_adapter import ElasticPolicy, FailFastOnUserErrors, NotEnoughWorkers


def node(port: int, alive: bool = True, name: str = "n") -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port}


@pytest.fixture
def listening() -> Any:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_node_that_refuses_connections_is_unreachable_unless_it_is_known_dead(listening: int) -> None:
    closed = closed_port()
    nodes = [node(listening, name="up"), node(closed, name="silent"), node(closed, alive=False, name="dead")]
    assert ray_adapter.unreachable(nodes) == ["silent"]


@pytest.mark.parametrize(
    ("workers", "cluster", "wanted"),
    [
        ({}, {"CPU": 8, "trainer": 2}, {"trainer": 1.0, "CPU": 0.0}),
        ({}, {"CPU": 8}, {"CPU": 0.1}),
        ({"trainer": 0, "cpus": 2}, {"CPU": 8, "trainer": 2}, {"CPU": 2.0}),
        ({"use_gpu": True, "cpus": 4}, {"CPU": 8, "GPU": 2, "trainer": 2}, {"GPU": 1.0, "CPU": 4.0}),
        ({"cpus": 0}, {"CPU": 8}, {"CPU": 0.01}),
    ],
)
def test_workers_reserve_what_the_cluster_offers(
    workers: dict[str, Any], cluster: dict[str, float], wanted: dict[str, float]
) -> None:
    assert ray_adapter.worker_resources(WorkersConfig(**workers), cluster) == wanted


def policy(monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, Any]], offered: dict[str, dict[str, float]]) -> Any:
    """The policy over a given view of the cluster, its clock under the test's control."""
    made = ElasticPolicy(ray_adapter.scaling_config(WorkersConfig(min=1, max=3), {"trainer": 3}), wait_s=10.0)
    made.now = 0.0  # type: ignore[attr-defined]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray_adapter.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(made, "_get_reserved_resources", lambda: offered)
    monkeypatch.setattr(made, "_maybe_send_resource_request", lambda: None)
    return made


def test_the_group_is_sized_by_what_is_left(monkeypatch: pytest.MonkeyPatch, listening: int) -> None:
    two = {"a": {"trainer": 1.0, "CPU": 4.0}, "b": {"trainer": 1.0, "CPU": 4.0}}
    decision = policy(monkeypatch, [node(listening)], two).make_decision_for_non_running_worker_group()
    assert isinstance(decision, ResizeDecision) and decision.num_workers == 2


def test_no_size_is_chosen_while_a_node_is_silent(monkeypatch: pytest.MonkeyPatch, listening: int) -> None:
    nodes = [node(listening), node(closed_port())]
    waiting = policy(monkeypatch, nodes, {"a": {"trainer": 1.0}, "b": {"trainer": 1.0}})
    assert isinstance(waiting.make_decision_for_non_running_worker_group(), NoopDecision)
    nodes[1]["Alive"] = False
    assert isinstance(waiting.make_decision_for_non_running_worker_group(), ResizeDecision)


def test_waiting_for_workers_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch, listening: int) -> None:
    waiting = policy(monkeypatch, [node(listening)], {"a": {"CPU": 4.0}})
    for waiting.now in (0.0, 9.0, 10.0):
        assert isinstance(waiting.make_decision_for_non_running_worker_group(), NoopDecision)
    waiting.now = 10.5
    with pytest.raises(NotEnoughWorkers, match=r"no 1 worker\(s\) with .*trainer.* within 10 s"):
        waiting.make_decision_for_non_running_worker_group()


def test_a_users_mistake_is_found_in_what_ray_wraps_around_it() -> None:
    mistake = CheckpointError("x.safetensors is missing.")
    wrapped = RuntimeError("task failed")
    wrapped.cause = mistake  # type: ignore[attr-defined]
    assert ray_adapter.user_error(wrapped) == "x.safetensors is missing."
    assert ray_adapter.user_error(WorkerGroupError("failed", {1: wrapped})) == "x.safetensors is missing."
    assert ray_adapter.user_error(RuntimeError("a bug")) is None


def test_a_users_mistake_is_not_retried_and_a_lost_worker_is() -> None:
    lost = WorkerHealthCheckFailedError("worker died", ray.exceptions.ActorDiedError())
    judge = FailFastOnUserErrors(ray_adapter.failure_config(WorkersConfig(max_failures=2)))
    assert judge.make_decision(WorkerGroupError("", {0: CheckpointError("damaged")})) is FailureDecision.RAISE
    assert judge.make_decision(WorkerGroupError("", {0: lost})) is FailureDecision.RETRY
    assert judge.make_decision(WorkerGroupError("", {0: lost})) is FailureDecision.RETRY
    assert judge.make_decision(WorkerGroupError("", {0: lost})) is FailureDecision.RAISE


def test_dead_ranks_are_told_from_ranks_that_raised() -> None:
    lost = WorkerHealthCheckFailedError("worker died", ray.exceptions.ActorDiedError())
    error = WorkerGroupError("", {0: RuntimeError("gloo"), 1: lost})
    assert ray_adapter._reason(error) == "lost the worker of rank 1"
    assert ray_adapter._reason(ControllerError(RuntimeError("x"))) == "ControllerError"
    assert ray_adapter._reason(None) == "worker group resized"
    broken = WorkerGroupError("", {1: RuntimeError("Connection closed by peer\nat x.cc:12")})
    assert ray_adapter._reason(broken) == "rank 1 stopped: RuntimeError: Connection closed by peer"


def test_ray_still_has_the_hooks_that_are_used() -> None:
    assert "recompute" in inspect.signature(_coordinator().get_reserved_resources).parameters
    assert set(inspect.signature(DataParallelTrainer._initialize_and_run_controller).parameters) == {
        "self",
        "controller_init_kwargs",
    }
    source = inspect.getsource(DataParallelTrainer.fit)
    assert "scaling_policy=" in source and "failure_policy=" in source
    for name in ("_get_reserved_resources", "_maybe_send_resource_request", "_count_possible_workers"):
        assert callable(getattr(ElasticScalingPolicy, name))
    assert callable(ControllerCallback.after_controller_state_update)
    assert callable(WorkerGroupCallback.after_worker_group_start)


def _coordinator() -> Any:
    from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator

    actor = default_autoscaling_coordinator._AutoscalingCoordinatorActor
    return getattr(actor, "__ray_actor_class__", actor)
