"""The endpoint over HTTP: answers, streams, refusals, deadlines, crowds, clients that leave."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest

from tests.serve.endpoint import QUESTION, Endpoint, request
from tests.serve.tiny import png, wav


def parts(*content: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(content)}]


def image(data: bytes) -> dict[str, Any]:
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"},
    }


def audio(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}


def events(response: httpx.Response) -> list[Any]:
    lines = [line.partition("data: ")[2] for line in response.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def endpoint() -> Endpoint:
    return Endpoint()


def test_an_answer_is_the_engines_own(endpoint: Endpoint) -> None:
    text, tokens = endpoint.oracle(20)
    answer = endpoint.chat(max_tokens=20).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert answer["usage"]["completion_tokens"] == len(tokens)
    assert answer["choices"][0]["finish_reason"] == ("length" if len(tokens) == 20 and tokens[-1] != 1 else "stop")
    assert (answer["object"], answer["model"], answer["system_fingerprint"]) == ("chat.completion", "tiny", "fp_test")


def test_media_reach_the_model_and_are_counted(endpoint: Endpoint) -> None:
    words = {"type": "text", "text": QUESTION}
    plain = endpoint.chat(max_tokens=1, messages=parts(words)).json()["usage"]["prompt_tokens"]
    pictured = endpoint.chat(max_tokens=1, messages=parts(image(png()), words)).json()["usage"]["prompt_tokens"]
    table = {"type": "input_table", "record": {"age": 41, "city": "Oslo"}}
    tabled = endpoint.chat(max_tokens=1, messages=parts(table, words)).json()["usage"]["prompt_tokens"]
    heard = endpoint.chat(max_tokens=1, messages=parts(audio(wav()), words)).json()["usage"]["prompt_tokens"]
    assert pictured - plain == 4  # an 8 x 8 picture in 4 x 4 patches
    assert tabled - plain == 2
    assert heard > plain


def test_a_stream_says_what_the_whole_answer_says(endpoint: Endpoint) -> None:
    whole = endpoint.chat(max_tokens=30).json()
    response = endpoint.chat(max_tokens=30, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, last, done = events(response)
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant" and all("role" not in delta for delta in deltas[1:])
    assert "".join(delta.get("content", "") for delta in deltas) == whole["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == whole["choices"][0]["finish_reason"]
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(chunk["usage"] is None for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_usage_is_left_out_of_a_stream_that_did_not_ask(endpoint: Endpoint) -> None:
    *chunks, _ = events(endpoint.chat(max_tokens=3, stream=True))
    assert all("usage" not in chunk for chunk in chunks)


def test_choices_differ_by_seed_and_the_first_is_the_single_one(endpoint: Endpoint) -> None:
    single = endpoint.chat(max_tokens=20, seed=4).json()
    many = endpoint.chat(max_tokens=20, seed=4, n=3).json()
    texts = [choice["message"]["content"] for choice in many["choices"]]
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2]
    assert texts[0] == single["choices"][0]["message"]["content"]
    assert len(set(texts)) == 3
    assert many["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]


def test_a_stop_string_ends_the_answer_before_it(endpoint: Endpoint) -> None:
    whole = endpoint.chat(max_tokens=40).json()["choices"][0]["message"]["content"]
    stop = whole[10:12]
    answer = endpoint.chat(max_tokens=40, stop=stop).json()
    assert answer["choices"][0]["message"]["content"] == whole[: whole.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_dead_decode_replicas_leave_no_trace_in_the_answer(endpoint: Endpoint) -> None:
    undisturbed = endpoint.chat(max_tokens=40, stream=True)
    endpoint.pools.die_after = [7, 0, 13]
    disturbed = endpoint.chat(max_tokens=40, stream=True)

    def told(response: httpx.Response) -> list[Any]:
        return [chunk["choices"] for chunk in events(response)[:-1]]

    assert told(disturbed) == told(undisturbed)
    assert endpoint.records[-1].retries == 3


def test_where_a_prompt_runs_leaves_no_trace_in_the_answer_but_in_the_record() -> None:
    endpoint = Endpoint()
    split = endpoint.chat(max_tokens=40, n=2).json()
    endpoint.pools.where = "local"
    for deaths in ([], [7, 0, 13]):
        endpoint.pools.die_after = list(deaths)
        local = endpoint.chat(max_tokens=40, n=2).json()
        assert local["choices"] == split["choices"]
        assert local["usage"]["total_tokens"] == split["usage"]["total_tokens"]
        assert (endpoint.records[-1].local, endpoint.records[-1].retries) == (2, len(deaths))
    assert endpoint.records[0].local == 0


def test_a_failure_after_the_first_token_is_an_event(endpoint: Endpoint) -> None:
    endpoint.pools.die_after = [2, 0, 0, 0]
    response = endpoint.chat(max_tokens=40, stream=True)
    assert response.status_code == 200
    error = events(response)[-1]["error"]
    assert error["code"] == "replicas_unavailable"
    assert endpoint.records[-1].status == 503


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"messages": []}, 400, "messages"),
        ({"model": "gpt-x"}, 404, "model"),
        ({"max_tokens": 513}, 400, "max_tokens"),
        ({"max_completion_tokens": 512}, 400, "max_completion_tokens"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, 400, "messages"),
        ({"messages": parts(image(b"\x89PNG not really"))}, 400, "messages"),
        ({"messages": parts(image(png(101)))}, 400, "messages"),
        ({"messages": parts(image(bytes(20_001)))}, 413, "messages[0].content[0].image_url.url"),
        ({"messages": parts(audio(b"RIFF nothing"))}, 400, "messages"),
        ({"messages": parts(audio(wav(sample_rate=8_000)))}, 400, "messages"),
        ({"messages": parts({"type": "input_table", "record": {"height": 3}})}, 400, "messages"),
        ({"messages": parts({"type": "video_url"})}, 400, "messages[0].content[0].type"),
        ({"n": 16}, 400, "n"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_have_their_status_and_name_the_field(
    fields: dict[str, Any], status: int, param: str, stream: bool
) -> None:
    endpoint = Endpoint(max_queue=8)
    response = endpoint.chat(stream=stream, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert error["type"] == "invalid_request_error" and error["code"]
    assert error["message"].endswith((".", "?"))
    assert endpoint.chat(max_tokens=2).status_code == 200


def test_a_full_queue_answers_503_with_retry_after() -> None:
    endpoint = Endpoint(max_queue=2)

    async def crowd(client: httpx.AsyncClient) -> list[httpx.Response]:
        calls = [client.post("/v1/chat/completions", json=request(max_tokens=5)) for _ in range(4)]
        return await asyncio.gather(*calls)

    answers = endpoint.run(crowd)
    assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503]
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert refused.json()["error"]["code"] == "overloaded"
    assert int(refused.headers["retry-after"]) >= 1


def test_a_request_that_cannot_be_done_in_time_answers_504() -> None:
    endpoint = Endpoint(request_timeout_s=0.2)
    endpoint.pools.hang = True
    response = endpoint.chat(max_tokens=5)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")
    assert "serve.request_timeout_s=0.2" in response.json()["error"]["message"]


def test_a_client_that_leaves_frees_its_sequence() -> None:
    endpoint = Endpoint()

    async def leave(client: httpx.AsyncClient) -> None:
        call = asyncio.create_task(client.post("/v1/chat/completions", json=request(max_tokens=400, stream=True)))
        while endpoint.pools.engine.stats().running == 0:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    endpoint.run(leave)
    assert [record.status for record in endpoint.records] == [499]


def test_bodies_over_the_limit_are_413() -> None:
    endpoint = Endpoint(body_bytes=1000)
    assert endpoint.chat(messages=[{"role": "user", "content": "x" * 2000}]).status_code == 413


def test_the_other_paths(endpoint: Endpoint) -> None:
    async def visit(client: httpx.AsyncClient) -> list[httpx.Response]:
        paths = ("/healthz", "/v1/models", "/v1/models/tiny", "/v1/models/other", "/nowhere", "/v1/chat/completions")
        return [await client.get(path) for path in paths]

    health, models, one, other, nowhere, wrong_method = endpoint.run(visit)
    assert health.json() == {"status": "ok", "model": "tiny"}
    assert models.json()["data"] == [one.json()]
    assert (one.json()["id"], one.json()["max_model_len"]) == ("tiny", 512)
    assert other.status_code == 404 and other.json()["error"]["code"] == "model_not_found"
    assert nowhere.status_code == 404 and "/v1/chat/completions" in nowhere.json()["error"]["message"]
    assert wrong_method.status_code == 405


def test_a_defect_is_a_500_that_tells_no_internals(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = Endpoint()

    async def broken(*arguments: Any) -> Any:
        raise KeyError("secret")

    endpoint.pools.prefill = broken  # type: ignore[method-assign]
    response = endpoint.chat(max_tokens=5)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    reference = error["message"].split()[-1].rstrip(".")
    assert f"{reference}: 'secret'" in caplog.text


def test_records_carry_what_metrics_need(endpoint: Endpoint) -> None:
    answer = endpoint.chat(max_tokens=10).json()
    record = endpoint.records[-1]
    assert (record.status, record.retries) == (200, 0)
    assert record.prompt_tokens == answer["usage"]["prompt_tokens"]
    assert record.completion_tokens == answer["usage"]["completion_tokens"]
    assert record.ttft_s is not None and 0 < record.ttft_s <= record.seconds
