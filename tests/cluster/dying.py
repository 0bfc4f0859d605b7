"""Replicas that kill their own process, or another, with SIGKILL at an exact point of a request, when a file says so.

The file `order` beside the published model holds `POINT PID`, PID 0 for the replica itself. The first replica to
reach the point takes the file away and obeys. While the file `hold` is there, decode replicas take nothing over.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from elasmo.config import ServeConfig
from elasmo.engine.contract import StepOutput
from elasmo.engine.kv import KVCachePayload
from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded
from elasmo.serve import decode, prefill
from elasmo.serve.decode_loop import Admit, Event
from elasmo.serve.tokens import Problem, TokenBatch


class Orders:
    """The file, as a replica or the test sees it."""

    def __init__(self, published: str | Path) -> None:
        self._file = Path(published).with_name("order")
        self.hold = Path(published).with_name("hold")

    def give(self, point: str, pid: int = 0) -> None:
        """Has the process, or the replica that reaches the point, killed there."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{point} {pid}")
        written.rename(self._file)

    def carried_out(self) -> bool:
        """Whether a replica took the order."""
        return not self._file.exists()

    def obey(self, *points: str) -> None:
        """Kills, if one of these points is ordered and nobody was faster."""
        try:
            point, _, pid = self._file.read_text().rpartition(" ")
            if point not in points:
                return
            self._file.unlink()
        except FileNotFoundError:
            return
        os.kill(int(pid) or os.getpid(), signal.SIGKILL)


class Prefill(prefill.Prefill):
    """Obeys before the prompt runs, and when its KV is made but not yet the call's result."""

    def __init__(self, published: str, config: ServeConfig) -> None:
        self._orders = Orders(published)
        super().__init__(published, config)

    async def prefill(self, prompt: Encoded, params: SamplingParams, timeout_s: float) -> KVCachePayload | Problem:
        self._orders.obey("prefill begins")
        payload = await super().prefill(prompt, params, timeout_s)
        self._orders.obey("prefill has made KV")
        return payload


class Decode(decode.Decode):
    """Obeys before it reads KV, with the KV read and not yet in its pages, and when a step made token N."""

    def __init__(self, published: str, config: ServeConfig) -> None:
        self._orders = Orders(published)
        super().__init__(published, config)
        admit = self._loop.admit

        def obey_and_admit(message: Admit) -> None:
            self._orders.obey("decode has read KV")
            admit(message)

        self._loop.admit = obey_and_admit  # type: ignore[method-assign]

    async def decode(
        self, kv: Sequence[Any], params: SamplingParams, sent: tuple[int, ...], timeout_s: float
    ) -> AsyncGenerator[TokenBatch | Problem, None]:
        self._orders.obey("decode begins")
        while self._orders.hold.exists():
            await asyncio.sleep(0.02)
        async with aclosing(super().decode(kv, params, sent, timeout_s)) as items:
            async for item in items:
                yield item

    def _deliver(self, events: Sequence[Event]) -> None:
        if not self._orders.carried_out():
            self._orders.obey(
                *(f"decode makes token {event.index}" for event in events if isinstance(event, StepOutput))
            )
        super()._deliver(events)
