"""Auto mode and prefix affinity on a real cluster: each way is taken, and the answers are the same."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray

from elasmo.config import Config
from elasmo.model import published
from elasmo.serve.launch import Endpoint
from tests.cluster.test_serve import MODEL, free_port
from tests.serve.tiny import tiny_model

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
LONG = "what digit is this? " * 40


class Auto:
    """An endpoint in auto mode with two replicas a pool."""

    def __init__(self, folder: Path) -> None:
        published.write(folder, "tiny", *tiny_model(config=MODEL), {})
        pools = {"prefill": {"cpus": 0.1, "replicas": 2}, "decode": {"cpus": 0.1, "replicas": 2}}
        serve = {"published": str(folder), "port": free_port(), "mode": "auto", "ingress": {"cpus": 0.1}, **pools}
        self.endpoint = Endpoint(Config.model_validate({"serve": serve}))

    def stats(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.endpoint.url}/v1/elasmo/stats", timeout=30).json())

    def local(self) -> int:
        return int(self.stats()["ingress"]["local"])

    def ask(self, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
        """Answers to requests sent at once."""

        async def main() -> list[dict[str, Any]]:
            async with httpx.AsyncClient(timeout=60) as client:
                url = f"{self.endpoint.url}/v1/chat/completions"
                answers = await asyncio.gather(*(client.post(url, json=body) for body in bodies))
            assert [answer.status_code for answer in answers] == [200] * len(bodies)
            return [dict(answer.json()) for answer in answers]

        return asyncio.run(main())


def body(text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "messages": messages, "max_tokens": 24, "seed": 1, **fields}


@pytest.fixture(scope="module")
def auto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Auto]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "platform"), str(ROOT)]))
        ray.init(
            address="local", num_cpus=2, object_store_memory=150 << 20, logging_level="WARNING", log_to_driver=False
        )
        try:
            auto = Auto(tmp_path_factory.mktemp("published"))
            yield auto
            auto.endpoint.close()
        finally:
            ray.shutdown()


def test_auto_takes_each_way_and_the_answers_are_the_same(auto: Auto) -> None:
    first, before = body(f"alone {LONG}"), auto.local()
    (alone,) = auto.ask(first)
    assert auto.local() == before + 1, "nobody decodes: it costs nobody anything to run the prompt there"
    # Many at once, each with a beginning of its own: those that come while others decode are split.
    crowd = [body(f"{number} {LONG}") for number in range(10)]
    together = auto.ask(*crowd)
    local = auto.local() - before - 1
    assert 0 < local < len(crowd), local
    for each, answer in zip(crowd, together, strict=True):
        (again,) = auto.ask(each)
        assert again["choices"] == answer["choices"]
    (again,) = auto.ask(first)
    assert again["choices"] == alone["choices"]


def test_a_prompt_goes_where_its_beginning_is(auto: Auto) -> None:
    for turn in range(6):
        (answer,) = auto.ask(body(f"a conversation {LONG} turn {turn}"))
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        # With two replicas and no affinity, the second and third turns would miss half of the time.
        assert turn == 0 or cached > 300, (turn, cached)
