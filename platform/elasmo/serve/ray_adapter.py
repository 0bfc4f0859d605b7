"""Every private interface of Ray that serving leans on, in one place, and Ray's exceptions in serving's words.

Why private ones: the public handle API turns a call's result into a value in the caller. KV must stay a reference that
the ingress owns and only decode reads, so the reference itself is needed, and word of when it is ready unfetched.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import ray
import ray.serve.context
from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from elasmo.serve.deadline import Deadline
from elasmo.serve.tokens import KVLost, ReplicaFailed


def forget_controller() -> None:
    """Drops the controller that this process has known, so that it is looked up by name in the cluster it is in now.

    Serve tells clusters apart by job id, which is the same for the first driver of each: a process that leaves one
    cluster for another would call an actor that is not there.
    """
    ray.serve.context._set_global_client(None)


def method_of(handle: DeploymentHandle, method: str, stream: bool) -> DeploymentHandle:
    """A replica's method to call, its results by reference; routing is set up now and not in the first request."""
    # By reference even where Serve is set to its gRPC transport, whose results never reach the object store.
    return handle.options(method_name=method, stream=stream, _by_reference=True)


async def call_by_reference(
    method: DeploymentHandle, deadline: Deadline, waiting_for: str, *arguments: Any
) -> ray.ObjectRef:
    """Calls a replica and returns the reference of its result once that is ready, here or on another node.

    The caller owns the result: it outlives the replica that made it. Whether it is a value or an error shows when it
    is read.

    Raises:
        DeadlineExceeded: with `waiting_for`; the call is cancelled.
        ReplicaFailed: no replica took the call.
    """
    response: Any = method.remote(*arguments)
    done = False
    try:
        ref: ray.ObjectRef = await deadline.within(response._to_object_ref(), f"a replica for {waiting_for}")
        await deadline.within(_ready(ref), waiting_for)
        done = True
        return ref
    except (RayError, RayServeException) as error:
        raise ReplicaFailed(first_line(error)) from error
    finally:
        if not done:
            response.cancel()


async def stream_items(
    method: DeploymentHandle, deadline: Deadline, waiting_for: str, *arguments: Any
) -> AsyncGenerator[Any, None]:
    """Items of a replica's async generator method. Closing it cancels the call on the replica.

    Raises:
        DeadlineExceeded: an item did not come in time.
        ReplicaFailed: the replica died or raised.
    """
    response: Any = method.remote(*arguments)
    done = False
    try:
        while True:
            item = await deadline.within(anext(response, None), waiting_for)
            if item is None:
                break
            yield item
        done = True
    except (RayError, RayServeException) as error:
        done = True
        raise ReplicaFailed("the replica died" if isinstance(error, RayActorError) else first_line(error)) from error
    finally:
        if not done:
            response.cancel()


async def ask_all(handle: DeploymentHandle, method: str, timeout_s: float) -> list[dict[str, Any]]:
    """The answers of every replica of a pool; one that does not answer, or no pool, is told as `{"error": ...}`."""
    try:
        answers = await handle.broadcast(method).results_async(timeout_s=timeout_s, return_exceptions=True)
    except (RayError, RayServeException, TimeoutError) as error:
        return [{"error": first_line(error)}]
    return [{"error": first_line(answer)} if isinstance(answer, BaseException) else answer for answer in answers]


async def read(ref: ray.ObjectRef, deadline: Deadline) -> Any:
    """The KV behind a reference someone else owns: a view of the object store where it is on this node.

    Raises:
        KVLost: the bytes or their owner are gone, or the call that was to make them failed.
        DeadlineExceeded: they did not arrive in time.
    """
    try:
        return await deadline.within(ref, "KV to arrive")
    except RayTaskError as error:
        raise KVLost(f"prefill failed: {first_line(error)}") from error
    except RayActorError as error:
        raise KVLost("the prefill replica died before it answered") from error
    except ObjectLostError as error:
        raise KVLost("the node that held the KV, or the KV's owner, is gone") from error
    except RayError as error:
        raise KVLost(f"the KV cannot be read: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """One line of an error; a task's error is told by its cause, not by its traceback."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    text = str(cause).strip()
    return text.splitlines()[0] if text else type(cause).__name__


async def _ready(ref: ray.ObjectRef) -> None:
    """Returns once the object exists somewhere; neither fetches nor deserialises it."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def resolve() -> None:
        if not ready.done():
            ready.set_result(None)

    def on_ready(error: BaseException | None) -> None:
        loop.call_soon_threadsafe(resolve)

    cancel = ref._on_ready(on_ready)
    try:
        await ready
    finally:
        if not ready.done() or ready.cancelled():
            cancel()
