"""The thread that owns a decode replica's engine: continuous batching over every admitted sequence, asleep when idle.

Sequences enter and leave between steps. The engine is touched by this thread alone; callers talk to it through an inbox
and hear back through one callback a step.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elasmo.engine.contract import Engine, EngineFull, EngineRefused, EngineStats, StepOutput
from elasmo.engine.kv import KVCachePayload, KVMismatchError
from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded
from elasmo.serve.tokens import Problem

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Admit:
    """A sequence that wants pages: its KV, and the tokens its stream has already seen."""

    request_id: str
    payload: KVCachePayload
    params: SamplingParams
    replay: tuple[int, ...] = ()


@dataclass(frozen=True)
class Run:
    """A sequence whose prompt is to be computed here, and the tokens its stream has already seen."""

    request_id: str
    prompt: Encoded
    params: SamplingParams
    replay: tuple[int, ...] = ()


@dataclass(frozen=True)
class Failed:
    """A sequence that ended without a finish reason."""

    request_id: str
    problem: Problem


Event = StepOutput | Failed


class DecodeLoop:
    """Runs `engine.step` while there is a sequence to run.

    Args:
        engine: used by this loop's thread only.
        deliver: called on that thread after each step with what the step produced, in order.
    """

    def __init__(self, engine: Engine, deliver: Callable[[Sequence[Event]], None]) -> None:
        self._engine = engine
        self._deliver = deliver
        self._wake = threading.Condition()
        self._inbox: deque[Admit | Run | str] = deque()  # a new sequence, or the id of a request to abort
        self._waiting: deque[Admit | Run] = deque()
        self._running: set[str] = set()
        self._closed = False
        self.failed_steps = 0
        self.stats: EngineStats = engine.stats()
        self._thread = threading.Thread(target=self._run, name="decode-loop", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Sequences that wait for room in the engine."""
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def admit(self, admit: Admit | Run) -> None:
        """Queues a sequence; its outputs come through `deliver`."""
        self._send(admit)

    def abort(self, request_id: str) -> None:
        """Drops a sequence and frees its pages before the next step; unknown ids are ignored."""
        self._send(request_id)

    def close(self) -> None:
        """Ends the thread after the step it is in."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _send(self, message: Admit | Run | str) -> None:
        with self._wake:
            self._inbox.append(message)
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closed or self._inbox or self._waiting or self._running)
                if self._closed:
                    return
                messages = list(self._inbox)
                self._inbox.clear()
            self._take(messages)
            # A payload's arrays are views that pin the object store; keep none of them across a step.
            del messages
            events = self._admit_waiting()
            if self._running:
                events += self._step()
            self.stats = self._engine.stats()
            if events:
                self._deliver(events)

    def _take(self, messages: Sequence[Admit | Run | str]) -> None:
        for message in messages:
            if not isinstance(message, str):
                self._waiting.append(message)
            else:
                self._waiting = deque(admit for admit in self._waiting if admit.request_id != message)
                if message in self._running:
                    self._running.discard(message)
                    self._engine.abort(message)

    def _admit_waiting(self) -> list[Event]:
        """Moves waiting sequences into the engine, first come first served, until it has no room.

        The engine has a queue of its own for prompts, but none may go past KV that waits for all its pages at once.
        """
        events: list[Event] = []
        while self._waiting:
            admit = self._waiting[0]
            try:
                if isinstance(admit, Run):
                    self._engine.add(admit.request_id, admit.prompt, admit.params, admit.replay)
                else:
                    self._engine.admit(admit.request_id, admit.payload, admit.params, admit.replay)
            except EngineFull as error:
                if self._running:
                    break
                # An empty engine without room: no sequence will ever make some.
                events.append(Failed(admit.request_id, Problem("refused", str(error))))
            except KVMismatchError as error:
                # Not the request's fault: a prefill of this model makes KV that fits.
                events.append(Failed(admit.request_id, Problem("kv lost", str(error))))
            except EngineRefused as error:
                events.append(Failed(admit.request_id, Problem("refused", str(error))))
            except Exception as error:
                logger.exception("admitting %s failed", admit.request_id)
                events.append(
                    Failed(admit.request_id, Problem("replica failed", f"the engine could not admit it: {error}"))
                )
            else:
                self._running.add(admit.request_id)
            self._waiting.popleft()
        return events

    def _step(self) -> list[Event]:
        try:
            outputs = self._engine.step()
        except Exception as error:
            logger.exception("a decode step failed; its %d sequences go elsewhere", len(self._running))
            return self._drop_all(error)
        self.failed_steps = 0
        self._running.difference_update(output.request_id for output in outputs if output.finish is not None)
        failures = [Failed(name, Problem("refused", reason)) for name, reason in self._engine.failures()]
        self._running.difference_update(failure.request_id for failure in failures)
        return [*outputs, *failures]

    def _drop_all(self, error: Exception) -> list[Event]:
        self.failed_steps += 1
        events: list[Event] = []
        for request_id in sorted(self._running):
            self._engine.abort(request_id)
            events.append(Failed(request_id, Problem("replica failed", f"a decode step failed: {error}")))
        self._running.clear()
        return events
