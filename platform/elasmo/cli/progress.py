"""Training progress on the console: one line that moves, and one kept for each evaluation and resize."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

POLL_S = 0.5


class TrainProgress:
    """Follows a run's log from a thread of its own; a context manager that `fit(on_start=...)` starts.

    On a screen it redraws one line; in a file or a pipe it prints a line now and then.
    """

    def __init__(self, console: Console, steps: int, every: int = 50) -> None:
        self._console = console
        self._steps = steps
        self._every = every
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        columns = (TextColumn("train"), BarColumn(30), TextColumn("{task.fields[line]}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("train", total=steps, line="starting workers")

    def watch(self, run_id: str, folder: Path, state: Any) -> None:
        """Starts following the run in `folder`."""
        self._console.print(f"run {run_id}")
        self._thread = threading.Thread(target=self._follow, args=(folder,), daemon=True)
        self._thread.start()

    def __enter__(self) -> TrainProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
        self._bar.stop()

    def _follow(self, folder: Path) -> None:
        from elasmo.train.run_folder import LogReader

        reader = LogReader(folder)
        while True:
            last = self._stop.is_set()
            for event in reader.read():
                self._show(event)
            if last:
                return
            self._stop.wait(POLL_S)

    def _show(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "step":
            loss = "not finite" if event["loss"] is None else f"{event['loss']:.3f}"
            line = (
                f"step {event['step']}/{self._steps}  loss {loss}  "
                f"{event['tokens'] / event['seconds']['step']:,.0f} tok/s  ranks {event['world']}"
            )
            self._bar.update(self._task, completed=event["step"], line=line)
            if not self._console.is_terminal and event["step"] % self._every == 0:
                self._console.print(f"  {line}")
            if "skipped" in event:
                self._console.print(f"  step {event['step']} skipped: {event['skipped']['reason']}")
        elif kind == "fallback":
            onto = "none is left" if event["to_step"] is None else f"on from step {event['to_step']}"
            self._console.print(f"  checkpoint of step {event['refused_step']} refused, {onto}: {event['reason']}")
        elif kind == "fault":
            self._console.print(f"  back to a checkpoint at step {event['step']}: {event['reason']}")
        elif kind == "eval":
            accuracy = ", ".join(f"{name} {value:.3f}" for name, value in event["accuracy"].items())
            self._console.print(f"  step {event['step']}: held-out accuracy {accuracy}")
        elif kind == "resize":
            self._console.print(
                f"  resize {event['from_world']} -> {event['to_world']} ranks ({event['lost']}): "
                f"{event['steps_redone']} steps redone, {event['seconds']['total']:.1f} s from fault to next step"
            )
