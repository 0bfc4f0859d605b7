"""The private interfaces of Ray that serving leans on are there, in the installed version; tests/cluster runs them."""

from __future__ import annotations

import inspect

import pytest
import ray
import ray.serve.context
from ray import serve
from ray.exceptions import RayTaskError
from ray.serve.handle import DeploymentHandle, DeploymentResponse, DeploymentResponseGenerator

from elasmo.serve import ray_adapter
from elasmo.serve.ray_adapter import first_line


def test_a_response_gives_its_reference_without_its_value() -> None:
    assert inspect.iscoroutinefunction(DeploymentResponse._to_object_ref)
    assert callable(ray.ObjectRef._on_ready)


def test_calls_can_be_forced_through_the_object_store() -> None:
    assert "_by_reference" in inspect.signature(DeploymentHandle.options).parameters


def test_responses_can_be_cancelled() -> None:
    assert callable(DeploymentResponse.cancel) and callable(DeploymentResponseGenerator.cancel)


def test_an_asgi_app_can_be_built_in_the_replica() -> None:
    class Late:
        def __serve_build_asgi_app__(self) -> None: ...

    assert issubclass(serve.ingress()(Late), Late)


def test_a_tasks_error_is_told_by_its_cause() -> None:
    error = RayTaskError("decode", "Traceback ...\n  File ...", ValueError("bad prompt\nsecond line"))
    assert first_line(error) == "bad prompt"
    assert first_line(KeyError()) == "KeyError"


def test_the_controller_that_serve_remembers_can_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve compares job ids, which are equal in the first driver of every cluster."""
    monkeypatch.setattr(ray.serve.context, "_global_client", object())
    ray_adapter.forget_controller()
    assert ray.serve.context._global_client is None
    assert ray.serve.context._cached_client_from_current_session() is False
