"""A client that lost its connection finds its stream by the last event it has; nothing is kept for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.serve.endpoint import Endpoint, request

PATH = "/v1/chat/completions"


def ids_and_data(text: str) -> list[tuple[str, str]]:
    found = []
    for block in text.split("\n\n"):
        if block:
            first, second = block.split("\n")
            found.append((first.removeprefix("id: "), second.removeprefix("data: ")))
    return found


async def resume(client: httpx.AsyncClient, event_id: str) -> httpx.Response:
    return await client.post(PATH, headers={"Last-Event-ID": event_id})


def test_events_are_numbered_and_any_of_them_can_be_gone_on_from() -> None:
    endpoint = Endpoint(reconnect_s=0.3)

    async def work(client: httpx.AsyncClient) -> None:
        whole = ids_and_data((await client.post(PATH, json=request(max_tokens=20, stream=True))).text)
        stream_id = whole[0][0].rpartition(":")[0]
        assert [event_id for event_id, _ in whole] == [f"{stream_id}:{number}" for number in range(len(whole))]
        assert whole[-1][1] == "[DONE]"
        for at in (0, 7, len(whole) - 1):
            rest = await resume(client, whole[at][0])
            assert rest.status_code == 200 and ids_and_data(rest.text) == whole[at + 1 :]
        await asyncio.sleep(0.5)
        assert (await resume(client, whole[3][0])).status_code == 404

    endpoint.run(work)


def test_a_stream_goes_on_while_its_client_is_away() -> None:
    endpoint = Endpoint(reconnect_s=5.0)

    async def work(client: httpx.AsyncClient) -> tuple[str, str]:
        undisturbed = (await client.post(PATH, json=request(max_tokens=60, stream=True))).text
        lost = asyncio.create_task(client.post(PATH, json=request(max_tokens=60, stream=True)))
        while endpoint.pools.engine.stats().running == 0:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
        # The transport of these tests gives no part of an answer, so the id is taken from the buffer.
        (live,) = [stream for stream in endpoint.streams()._streams.values() if not stream.ended]
        return undisturbed, (await resume(client, f"{live.id}:4")).text

    undisturbed, rest = endpoint.run(work)

    def content(text: str) -> list[str]:
        return [data.split('"choices"')[-1] for _, data in ids_and_data(text)]

    assert content(rest) == content(undisturbed)[5:]
    assert [record.status for record in endpoint.records] == [200, 200]


def test_a_client_that_never_comes_back_is_given_up() -> None:
    endpoint = Endpoint(reconnect_s=0.1)

    async def work(client: httpx.AsyncClient) -> None:
        endpoint.pools.hang = True
        lost = asyncio.create_task(client.post(PATH, json=request(max_tokens=60, stream=True)))
        await asyncio.sleep(0.05)
        endpoint.pools.hang = False
        while endpoint.pools.engine.stats().running == 0:
            await asyncio.sleep(0)
        endpoint.pools.hang = True
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
        await asyncio.sleep(0.3)
        assert endpoint.service.admission.in_flight == 0

    endpoint.run(work)
    assert [record.status for record in endpoint.records] == [499]


@pytest.mark.parametrize(("event_id", "status"), [("nonsense", 400), ("chatcmpl-0:x", 400), ("chatcmpl-0:1", 404)])
def test_ids_of_no_stream_are_refused(event_id: str, status: int) -> None:
    endpoint = Endpoint()
    response: Any = endpoint.run(lambda client: resume(client, event_id))
    assert response.status_code == status and response.json()["error"]["param"] == "Last-Event-ID"
