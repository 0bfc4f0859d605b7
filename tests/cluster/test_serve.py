"""Serving on a real Ray cluster, asked through the real `openai` client, while its replicas and a node are killed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import ray
from ray.cluster_utils import Cluster

from elasmo.config import Config, DecoderConfig, EngineConfig, LimitsConfig
from elasmo.engine.kv import KVCachePayload
from elasmo.engine.sampling import SamplingParams
from elasmo.engine.torch_engine import TorchEngine
from elasmo.model import published
from elasmo.model.sample import Audio, Image, Message, Segment, Table, Text
from elasmo.serve import ray_adapter
from elasmo.serve.deadline import Deadline
from elasmo.serve.launch import Endpoint
from elasmo.serve.tokens import KVLost
from tests.serve.tiny import CONFIG, png, tiny_model, wav

ROOT = Path(__file__).resolve().parents[2]
# KV of 4 KiB a token: the question's is far over the 100 kB below which Ray would carry it inside its messages.
MODEL = CONFIG.model_copy(update={"decoder": DecoderConfig(hidden=128, layers=4, heads=2, kv_heads=2, max_seq=640)})
LONG = 350
SMALL = 100_000  # bytes; of the objects that Serve keeps for itself, whose size varies with the figures in them
QUESTION = "what digit is this? " * 20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """The endpoint under test, a client of it, and the same model on an engine of its own."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.model, self.processor = tiny_model(config=MODEL)
        published.write(folder, "tiny", self.model, self.processor, {})
        pools = {
            "ingress": {"cpus": 0.1, "resources": {"front": 0.01}},
            "prefill": {"cpus": 0.1, "resources": {"back": 0.01}},
            "decode": {"cpus": 0.1, "resources": {"back": 0.01}},
        }
        self.config = Config.model_validate(
            {
                "serve": {
                    "published": str(folder),
                    "port": free_port(),
                    "engine": {"blocks": 256},
                    "request_timeout_s": 120,
                    **pools,
                }
            }
        )
        self.endpoint = Endpoint(self.config)
        self.client = openai.OpenAI(
            base_url=f"{self.endpoint.url}/v1",
            api_key="none",
            max_retries=0,
            timeout=self.config.serve.request_timeout_s,
        )
        self.long_seed = self._long_seed()

    def chat(self, *content: dict[str, Any], **parameters: Any) -> Any:
        messages = [{"role": "user", "content": list(content) or QUESTION}]
        return self.client.chat.completions.create(model="tiny", messages=messages, **parameters)  # type: ignore[call-overload]

    def stats(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.endpoint.url}/v1/elasmo/stats", timeout=30).json())

    def pid(self, pool: str) -> int:
        stats = self.stats()
        assert [list(replica) for replica in stats[pool]] != [["error"]], stats
        (replica,) = stats[pool]
        return int(replica["pid"])

    def oracle(self, segments: tuple[Segment, ...], params: SamplingParams) -> tuple[str, list[int], int]:
        """Text, tokens and prompt length by one engine, without pools."""
        engine = TorchEngine(self.model, self.processor.fingerprint(), "model", EngineConfig())
        prompt = self.processor.encode_chat([Message("user", segments)], LimitsConfig(), True)
        tokens = engine.generate(prompt, params)
        return self.processor.decode(tokens), tokens, len(prompt.tokens)

    def _long_seed(self) -> int:
        """A seed whose answer to the question does not end early."""
        for seed in range(100):
            params = SamplingParams(LONG, 1.0, 1.0, seed)
            if len(self.oracle((Text(QUESTION),), params)[1]) == LONG:
                return seed
        raise AssertionError("every answer ends early")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    os.makedirs("/tmp/ray", exist_ok=True)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "platform"), *([path] if path else [])])
    health = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": 2, "resources": {"front": 1}, "object_store_memory": 150 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": health})
    cluster.add_node(**BACK)
    ray.init(address=cluster.address, logging_level="WARNING", log_to_driver=False)
    try:
        served = Served(cluster, tmp_path_factory.mktemp("published"))
        yield served
        served.endpoint.close()
    finally:
        ray.shutdown()
        cluster.shutdown()
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path


BACK = {"num_cpus": 1, "resources": {"back": 1}, "object_store_memory": 100 << 20}


def stream_text(served: Served, during: Callable[[], None] | None = None, **parameters: Any) -> str:
    """A long answer's text; `during` is called once, after the third piece."""
    text, count = "", 0
    for chunk in served.chat(stream=True, max_tokens=LONG, seed=served.long_seed, **parameters):
        text += chunk.choices[0].delta.content or ""
        count += 1
        if count == 3 and during is not None:
            during()
    assert count > 3
    return text


def settle(check: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether `check` becomes true within that time."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def data_uri(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


def test_every_medium_is_answered_as_by_one_engine(served: Served) -> None:
    words = {"type": "text", "text": QUESTION}
    sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav()).decode(), "format": "wav"}}
    table = {"type": "input_table", "record": {"age": 41, "city": "Oslo"}}
    text = Text(QUESTION)
    cases: list[tuple[list[dict[str, Any]], tuple[Segment, ...]]] = [
        ([words], (text,)),
        ([data_uri(png()), words], (Image(png()), text)),
        ([sound, words], (Audio(wav()), text)),
        ([data_uri(png()), sound, words], (Image(png()), Audio(wav()), text)),
        ([table, words], (Table({"age": 41, "city": "Oslo"}), text)),
    ]
    for content, segments in cases:
        for temperature in (0.0, 1.0):
            expected, tokens, prompt_tokens = served.oracle(segments, SamplingParams(24, temperature, 1.0, 7))
            answer = served.chat(*content, max_tokens=24, temperature=temperature, seed=7)
            assert answer.choices[0].message.content == expected
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt_tokens, len(tokens))


def test_the_model_is_listed(served: Served) -> None:
    assert [model.id for model in served.client.models.list()] == ["tiny"]
    assert httpx.get(f"{served.endpoint.url}/healthz").json()["status"] == "ok"


def test_a_stream_ends_with_usage_and_says_the_whole_answer(served: Served) -> None:
    whole = served.chat(max_tokens=40, seed=served.long_seed)
    chunks = list(
        served.chat(max_tokens=40, seed=served.long_seed, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].usage == whole.usage
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_concurrent_requests_do_not_change_each_other(served: Served) -> None:
    async def ask(client: openai.AsyncOpenAI, seed: int) -> str:
        answer = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": QUESTION}], max_tokens=32, seed=seed
        )
        return answer.choices[0].message.content or ""

    async def crowd() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.endpoint.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, seed) for seed in range(12)))

    expected = [served.oracle((Text(QUESTION),), SamplingParams(32, 1.0, 1.0, seed))[0] for seed in range(12)]
    assert asyncio.run(crowd()) == expected


@pytest.mark.parametrize(
    ("parameters", "kind", "param"),
    [
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"model": "gpt-x"}, openai.NotFoundError, "model"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "max_tokens"),
        ({"messages": [{"role": "user", "content": [data_uri(b"no picture")]}]}, openai.BadRequestError, "messages"),
    ],
)
def test_the_client_raises_its_own_errors(
    served: Served, parameters: dict[str, Any], kind: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(kind) as caught:
        served.client.chat.completions.create(
            **{"model": "tiny", "messages": [{"role": "user", "content": "x"}], **parameters}
        )
    assert caught.value.param == param
    assert served.chat(max_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_pages(served: Served, stream: bool) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": LONG,
        "seed": served.long_seed,
        "stream": stream,
    }
    url = f"{served.endpoint.url}/v1/chat/completions"
    before = served.stats()["ingress"]["by_status"].get("499", 0)
    if stream:
        with httpx.stream("POST", url, json=body, timeout=30) as response:
            next(response.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=body, timeout=0.2)

    def freed() -> bool:
        stats = served.stats()
        (decode,) = stats["decode"]
        gone = stats["ingress"]["by_status"].get("499", 0) == before + 1
        return bool(gone and decode["running"] == 0 and decode["free_blocks"] == decode["total_blocks"])

    assert settle(freed), served.stats()


def test_a_stream_outlives_its_decode_replica_and_the_replica_that_made_its_kv(served: Served) -> None:
    expected = served.oracle((Text(QUESTION),), SamplingParams(LONG, 1.0, 1.0, served.long_seed))[0]
    prefill, decode = served.pid("prefill"), served.pid("decode")
    before = served.stats()["ingress"]["retries"]

    def kill() -> None:
        # Prefill has answered: a replacement decode replica can only get the KV from its owner, the ingress.
        os.kill(prefill, signal.SIGKILL)
        os.kill(decode, signal.SIGKILL)

    assert stream_text(served, kill) == expected
    assert served.stats()["ingress"]["retries"] == before + 1
    assert served.pid("decode") != decode
    # Until the replacement is there, the pool answers with an error.
    assert settle(lambda: served.stats()["prefill"][0].get("pid", prefill) != prefill, 30)


def test_a_stream_outlives_the_node_of_both_pools_and_the_kv(served: Served) -> None:
    expected = served.oracle((Text(QUESTION),), SamplingParams(LONG, 1.0, 1.0, served.long_seed))[0]
    decode = served.pid("decode")

    def kill() -> None:
        os.kill(decode, signal.SIGSTOP)  # or it would be done before the node is
        served.cluster.remove_node(served.cluster.list_all_nodes()[-1], allow_graceful=False)
        served.cluster.add_node(**BACK)
        with contextlib.suppress(ProcessLookupError):  # Ray may have been faster
            os.kill(decode, signal.SIGKILL)

    before = served.stats()["ingress"]["retries"]
    assert stream_text(served, kill) == expected
    assert served.pid("decode") != decode
    assert served.stats()["ingress"]["retries"] >= before + 3  # decode, prefill, decode


def test_kv_on_a_dead_node_reads_as_lost(served: Served) -> None:
    @ray.remote(num_cpus=0, resources={"doomed": 1})
    class Maker:
        def make(self) -> Any:
            return np.ones(1 << 18)

    node = served.cluster.add_node(num_cpus=1, resources={"doomed": 1}, object_store_memory=80 << 20)
    ref = Maker.remote().make.remote()
    assert ray.wait([ref], timeout=30, fetch_local=False)[0]
    served.cluster.remove_node(node, allow_graceful=False)

    async def read() -> Any:
        return await ray_adapter.read(ref, Deadline(30))

    with pytest.raises(KVLost):
        asyncio.run(read())


def test_kv_lives_in_the_object_store_as_long_as_its_request(served: Served) -> None:
    def free() -> float:
        return ray.available_resources()["object_store_memory"]

    decode = served.pid("decode")
    before = free()
    during: list[bool] = []

    def look() -> None:
        os.kill(decode, signal.SIGSTOP)  # or the request might be over before the look
        during.append(settle(lambda: free() < before - SMALL))
        os.kill(decode, signal.SIGCONT)

    stream_text(served, look)
    assert during == [True]
    assert settle(lambda: free() > before - SMALL)


def test_kv_is_read_from_the_object_store_without_a_copy(served: Served) -> None:
    engine = TorchEngine(served.model, "processor", "model", EngineConfig(blocks=16))
    prompt = served.processor.encode_chat([Message("user", (Text(QUESTION),))], LimitsConfig(), True)
    ref = ray.put(engine.prefill(prompt, SamplingParams(1)))

    async def read() -> KVCachePayload:
        payload: KVCachePayload = await ray_adapter.read(ref, Deadline(30))
        return payload

    for layer in asyncio.run(read()).layers:
        assert not layer.flags.owndata and not layer.flags.writeable
