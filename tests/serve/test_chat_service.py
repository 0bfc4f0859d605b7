"""Requests under pressure, over the whole endpoint in one process: queues, keys, deadlines, clients that give up."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import weakref
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from elasmo.engine.kv import KVCachePayload
from elasmo.model.sample import Message, Text
from tests.serve.endpoint import LIMITS, MODEL, QUESTION, Endpoint, request
from tests.serve.test_routes import image, parts
from tests.serve.tiny import png

PATH = "/v1/chat/completions"


def keys(**limits: dict[str, Any]) -> dict[str, Any]:
    return {name: {"sha256": hashlib.sha256(name.encode()).hexdigest(), **limit} for name, limit in limits.items()}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_hundred_impatient_clients_leave_room_for_twenty_patient_ones() -> None:
    """sglang#8177: after a crowd of clients had timed out, the server answered nobody any more."""
    endpoint = Endpoint(max_running=4, max_queue=200)

    async def work(client: httpx.AsyncClient) -> list[int]:
        async def give_up() -> None:
            async with asyncio.timeout(0.3):
                await client.post(PATH, json=request(max_tokens=400))

        left = await asyncio.gather(*(give_up() for _ in range(100)), return_exceptions=True)
        assert sum(isinstance(end, TimeoutError) for end in left) > 80
        calls = (client.post(PATH, json=request(max_tokens=8, seed=seed)) for seed in range(20))
        return [answer.status_code for answer in await asyncio.gather(*calls)]

    assert endpoint.run(work) == [200] * 20
    assert endpoint.service.admission.waiting == 0


def test_clients_that_leave_between_prefill_and_decode_leave_no_kv() -> None:
    """vllm#50425: each request cancelled between prefill and decode left its KV behind."""
    endpoint = Endpoint()
    endpoint.pools.hang = True  # prefill answers, decode never does
    alive: list[weakref.ref[KVCachePayload]] = []
    prefill = endpoint.pools.prefill

    async def watched(*arguments: Any) -> KVCachePayload:
        payload = await prefill(*arguments)
        alive.append(weakref.ref(payload))
        return payload

    endpoint.pools.prefill = watched  # type: ignore[method-assign]

    async def work(client: httpx.AsyncClient) -> None:
        for count in range(1, 201):
            call = asyncio.create_task(client.post(PATH, json=request(max_tokens=50, stream=count % 2 == 0)))
            while len(alive) < count:
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    endpoint.run(work)
    gc.collect()
    assert len(alive) == 200 and not any(ref() for ref in alive)
    assert [record.status for record in endpoint.records] == [499] * 200
    endpoint.service.admission._clock = lambda: float("inf")
    assert endpoint.service.admission.store_bytes == 0


@pytest.mark.parametrize("path", [PATH, "/v1/completions", "/v1/embeddings"])
def test_a_non_streaming_client_that_leaves_ends_its_work(path: str) -> None:
    """vllm#54947: requests without a stream ran on to their end after their clients had left."""
    endpoint = Endpoint()
    body = {PATH: request(max_tokens=400), "/v1/completions": {"prompt": QUESTION, "max_tokens": 400}}.get(
        path, {"input": QUESTION}
    )

    async def stuck(*arguments: Any) -> Any:
        await asyncio.sleep(60)

    async def work(client: httpx.AsyncClient) -> None:
        endpoint.pools.embed = stuck  # type: ignore[method-assign]
        call = asyncio.create_task(client.post(path, json={"model": "tiny", **body}))
        while not endpoint.service.admission.running:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    endpoint.run(work)
    assert [record.status for record in endpoint.records] == [499]
    assert endpoint.pools.engine.stats().tokens_generated < 300


def test_kv_has_to_have_room_before_prefill() -> None:
    endpoint = Endpoint(kv_mb=1, request_timeout_s=0.4)
    asked = endpoint.processor.encode_chat([Message("user", (Text(QUESTION),))], LIMITS, True)
    size = len(asked.tokens) * MODEL.kv_token_bytes + asked.nbytes
    endpoint.service.admission.store_limit_bytes = 2 * size - 1
    endpoint.pools.hang = True
    prefills = 0
    prefill = endpoint.pools.prefill

    async def counted(*arguments: Any) -> KVCachePayload:
        nonlocal prefills
        prefills += 1
        return await prefill(*arguments)

    endpoint.pools.prefill = counted  # type: ignore[method-assign]

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(client.post(PATH, json=request(max_tokens=5)) for _ in range(3)))

    answers = endpoint.run(work)
    # The first ran into its deadline on the pools; the others never left the queue, and were told so.
    assert [answer.status_code for answer in answers] == [504, 503, 503] and prefills == 1
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers[1:])
    assert "serve.kv_mb" in endpoint.chat(n=16, max_tokens=5).json()["error"]["message"]


def test_the_deadline_is_counted_from_the_arrival_of_the_request() -> None:
    """A body that comes slowly takes from the time of its answer, and does not get it twice."""
    endpoint = Endpoint(request_timeout_s=0.6)
    endpoint.pools.hang = True
    whole = json.dumps(request(max_tokens=5)).encode()

    async def slow(pause: float) -> AsyncIterator[bytes]:
        yield whole[:10]
        await asyncio.sleep(pause)
        yield whole[10:]

    async def work(client: httpx.AsyncClient) -> tuple[int, float]:
        began = asyncio.get_running_loop().time()
        answer = await client.post(PATH, content=slow(0.5))
        return answer.status_code, asyncio.get_running_loop().time() - began

    status, seconds = endpoint.run(work)
    assert status == 504 and seconds < 0.95
    answer = endpoint.run(lambda client: client.post(PATH, content=slow(0.9)))
    assert answer.status_code == 408


def test_keys_are_asked_for_everywhere_but_for_health() -> None:
    endpoint = Endpoint(keys=keys(alpha={}, root={"admin": True}))

    async def work(client: httpx.AsyncClient) -> None:
        assert (await client.get("/healthz")).status_code == 200
        for path in ("/v1/models", "/v1/models/tiny", "/v1/elasmo/stats"):
            assert (await client.get(path)).status_code == 401
        for path in (PATH, "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"):
            answer = await client.post(path, content=b"not even JSON")
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await client.get("/v1/models", headers=bearer("alpha"))).status_code == 200
        assert (await client.post(PATH, json=request(max_tokens=2), headers=bearer("alpha"))).status_code == 200
        assert (await client.get("/v1/elasmo/stats", headers=bearer("alpha"))).status_code == 403
        assert (await client.get("/v1/elasmo/stats", headers=bearer("root"))).status_code == 200

    endpoint.run(work)


def test_a_stream_is_gone_on_with_by_its_own_key_alone() -> None:
    endpoint = Endpoint(keys=keys(alpha={}, beta={}), reconnect_s=1.0)

    async def work(client: httpx.AsyncClient) -> list[int]:
        stream = await client.post(PATH, json=request(max_tokens=4, stream=True), headers=bearer("alpha"))
        last = stream.text.partition("\n")[0].removeprefix("id: ")
        again = [{**bearer(name), "Last-Event-ID": last} for name in ("beta", "alpha")]
        return [(await client.post(PATH, headers=headers)).status_code for headers in again]

    assert endpoint.run(work) == [404, 200]


def test_a_keys_limits_are_429_and_nobody_elses() -> None:
    asked = Endpoint().processor.encode_chat([Message("user", (Text(QUESTION),))], LIMITS, True)
    prompt = len(asked.tokens)
    limits = {"alpha": {"requests_per_minute": 2}, "beta": {"tokens_per_minute": 10 * prompt}}
    endpoint = Endpoint(keys=keys(**limits))

    async def work(client: httpx.AsyncClient) -> None:
        async def ask(name: str, **fields: Any) -> httpx.Response:
            return await client.post(PATH, json=request(**fields), headers=bearer(name))

        assert [(await ask("alpha", max_tokens=2)).status_code for _ in range(3)] == [200, 200, 429]
        assert (await ask("beta", max_tokens=8 * prompt, stop=["e", "i", " "])).status_code == 200
        refused = await ask("beta", max_tokens=9 * prompt)
        error = refused.json()["error"]
        assert (refused.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await ask("beta", max_tokens=9 * prompt + 1)).status_code == 400
        # What the first one reserved and did not use was returned: there is more than the one place in ten it left.
        assert (await ask("beta", max_tokens=prompt)).status_code == 200

    endpoint.run(work)


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"messages": parts(*[image(png())] * 4)}, 400, "serve.media_per_request=3"),
        ({"messages": [{"role": "user", "content": "x" * 5001}]}, 413, "serve.text_chars=5000"),
        ({"messages": [{"role": "user", "content": "x" * 2600}] * 2}, 413, "serve.text_chars=5000"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"enum": ["y" * 5000]}},
                }
            },
            413,
            "serve.text_chars=5000",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "description": "y" * 5000}}]},
            413,
            "serve.text_chars=5000",
        ),
    ],
)
def test_requests_that_would_take_long_to_read_are_refused_by_count(
    fields: dict[str, Any], status: int, word: str
) -> None:
    answer = Endpoint(media_per_request=3, text_chars=5000).chat(**fields)
    assert (answer.status_code, word in answer.json()["error"]["message"]) == (status, True), answer.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/tokenize"])
def test_bare_texts_have_the_same_cap(path: str) -> None:
    endpoint = Endpoint(text_chars=100)
    field = "input" if path == "/v1/embeddings" else "prompt"
    answer = endpoint.run(lambda client: client.post(path, json={"model": "tiny", field: "x" * 101}))
    assert answer.status_code == 413 and answer.json()["error"]["param"] == field


@pytest.mark.parametrize(
    "fields",
    [{"messages": []}, {"model": "x"}, {"max_tokens": 513}, {"n": 16}, {"logit_bias": {"999999": 1}}],
)
def test_a_refused_request_costs_no_retry(fields: dict[str, Any]) -> None:
    """A 4xx is the client's: it takes nothing from the retry budget and asks no second replica."""
    endpoint = Endpoint(max_queue=8)
    endpoint.pools.die_after = [0] * 9
    assert 400 <= endpoint.chat(**fields).status_code < 500
    assert endpoint.records[-1].retries == 0 and len(endpoint.pools.die_after) == 9
