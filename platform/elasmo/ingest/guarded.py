"""Runs a function over items in a child process, which is killed when one item takes too long or takes it down.

A decoder that is stuck in C code hears no signal and cannot be stopped from within its process. The child is forked, so
it starts in milliseconds with whatever the function closes over; items go to it some at a time, and while it works on
the next ones the caller works on the results of the last.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

ITEMS_AT_ONCE = 64
"""Their answers, some hundred bytes each, fit into a pipe: the child is not held up while the caller is busy."""


@dataclass(frozen=True)
class Stuck:
    """An item without a result, and why: one clause."""

    reason: str


class Guarded(Generic[Item, Result]):
    """The function as a process; `map` may be used once at a time. Close it, or use it in a `with` block."""

    def __init__(self, function: Callable[[Item], Result], timeout_s: float) -> None:
        self.function = function
        self.timeout_s = timeout_s
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Guarded[Item, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(self, items: Iterable[Item]) -> Iterator[tuple[Item, Result | Stuck]]:
        """(item, result) in the order of the items.

        Raises:
            Exception: what the function raised, of its first item that did.
        """
        source = iter(items)
        batch = list(islice(source, ITEMS_AT_ONCE))
        self._send(batch)
        while batch:
            results: list[Result | Stuck] = []
            while len(results) < len(batch):
                results.append(self._receive())
                if self._process is None:  # killed, or dead; the rest goes to another one
                    self._send(batch[len(results) :])
            following = list(islice(source, ITEMS_AT_ONCE))
            self._send(following)
            yield from zip(batch, results, strict=True)
            batch = following

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def _send(self, items: list[Item]) -> None:
        if not items:
            return
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `_receive` will tell how it died
            self._pipe.send_bytes(pickle.dumps(items, protocol=pickle.HIGHEST_PROTOCOL))

    def _receive(self) -> Result | Stuck:
        assert self._pipe is not None and self._process is not None
        if not self._pipe.poll(self.timeout_s):
            self.close()
            return Stuck(f"took more than {self.timeout_s:g} s")
        try:
            raised, answer = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode or 0
            self.close()
            return Stuck(f"ended its process ({signal.Signals(-code).name if code < 0 else f'exit {code}'})")
        if raised:
            self.close()
            raise answer
        result: Result = answer
        return result

    def _start(self) -> None:
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self._pipe, self.function)
        # mypy: contexts of several kinds have no common type with `Process`.
        self._process = context.Process(target=_serve, args=arguments, daemon=True)  # type: ignore[attr-defined]
        assert self._process is not None
        self._process.start()
        theirs.close()


def _serve(pipe: Connection, parents: Connection, function: Callable[[Any], Any]) -> None:
    """Answers every item of every batch with (False, result) or (True, what was raised)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parents.close()  # or the end of the parent would go unnoticed
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            for item in pickle.loads(pipe.recv_bytes()):
                try:
                    answer = pickle.dumps((False, function(item)))
                except Exception as error:
                    answer = _pickled(error)
                pipe.send_bytes(answer)
    os._exit(0)


def _pickled(error: Exception) -> bytes:
    try:
        answer = pickle.dumps((True, error))
        pickle.loads(answer)
    except Exception:
        return pickle.dumps((True, RuntimeError(f"{type(error).__name__}: {error}")))
    return answer
