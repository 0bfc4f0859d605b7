"""Streams that outlive a connection: the ingress keeps what it sent, and a client comes back with `Last-Event-ID`.

The ingress owns the buffer because it owns the request: a prefill or decode replica that dies is replaced behind it,
and a client that lost its connection finds the same events under the same numbers. A stream without a reader goes on
for `linger_s` and is then cancelled as a client that left is; a finished one is kept as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from elasmo.serve.completion import Completion
from elasmo.serve.openai_errors import ApiError, invalid_request
from elasmo.serve.sse import DONE, event, parse_event_id


class LiveStream:
    """One completion being told. Used on one event loop."""

    def __init__(self, completion: Completion, owner: str) -> None:
        self.id = completion.id
        self.owner = owner
        self.readers = 0
        self.ended = False
        self._completion = completion
        self._events: list[bytes] = []
        self._grew = asyncio.Event()
        self._task = asyncio.create_task(self._pump())

    async def read(self, first: int) -> AsyncGenerator[bytes, None]:
        """Events from number `first` on, to the end."""
        while True:
            while first < len(self._events):
                yield self._events[first]
                first += 1
            if self.ended:
                return
            grew = self._grew
            await grew.wait()

    async def close(self) -> None:
        """Cancels what still runs and frees what it holds."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._completion.close()

    async def _pump(self) -> None:
        failed = False
        try:
            async for document in self._completion.documents():
                failed = "error" in document
                self._add(event(self.id, len(self._events), document))
            if not failed:
                self._add(event(self.id, len(self._events), DONE))
        finally:
            await self._completion.close()
            self.ended = True
            self._wake()

    def _add(self, data: bytes) -> None:
        self._events.append(data)
        self._wake()

    def _wake(self) -> None:
        grew, self._grew = self._grew, asyncio.Event()
        grew.set()


class LiveStreams:
    """The streams of one ingress replica.

    Args:
        linger_s: how long a stream without a reader goes on, or is kept when it has ended.
        limit: most streams kept after their end; the oldest go first.
    """

    def __init__(self, linger_s: float, limit: int) -> None:
        self._linger_s = linger_s
        self._limit = limit
        self._streams: dict[str, LiveStream] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, completion: Completion, owner: str) -> LiveStream:
        """The stream of a completion whose first piece is there, and its first reader, who must `leave`."""
        stream = LiveStream(completion, owner)
        stream.readers = 1
        self._streams[stream.id] = stream
        return stream

    def resume(self, last_event_id: str, owner: str) -> tuple[LiveStream, int]:
        """The stream of an event that a client has, and the number of the one it misses; the reader must `leave`.

        Raises:
            ApiError: 400 for what is no event's id, 404 for a stream that is not kept (any more) by this replica, or
                not this owner's.
        """
        parsed = parse_event_id(last_event_id)
        if parsed is None:
            raise invalid_request(
                f"The Last-Event-ID header is {last_event_id[:80]!r}; send the id of the last event you have.",
                "Last-Event-ID",
            )
        stream = self._streams.get(parsed[0])
        if stream is None or stream.owner != owner:
            raise ApiError(
                404,
                f"The stream {parsed[0][:60]!r} is not here; streams are kept for serve.reconnect_s="
                f"{self._linger_s:g} s after their readers left; send the request again.",
                "invalid_request_error",
                "stream_not_found",
                "Last-Event-ID",
            )
        stream.readers += 1
        return stream, parsed[1] + 1

    async def leave(self, stream: LiveStream) -> None:
        """A reader has all of a stream, or is gone; the stream lingers if nobody else reads it."""
        stream.readers -= 1
        if self._linger_s == 0:
            await self._close_unread(stream)
            return
        asyncio.get_running_loop().call_later(self._linger_s, self._lingered, stream)
        kept = [other for other in self._streams.values() if other.ended and not other.readers]
        for oldest in kept[: max(0, len(kept) - self._limit)]:
            del self._streams[oldest.id]

    def _lingered(self, stream: LiveStream) -> None:
        task = asyncio.create_task(self._close_unread(stream))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_unread(self, stream: LiveStream) -> None:
        if stream.readers == 0 and self._streams.pop(stream.id, None) is not None:
            await stream.close()
