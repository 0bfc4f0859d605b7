"""The whole endpoint in one process: real model, real engine, real routes; no network and no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from elasmo.config import LimitsConfig, ServeConfig
from elasmo.engine.sampling import SamplingParams
from elasmo.model.sample import Message, Text
from elasmo.serve.chat_service import ChatService
from elasmo.serve.live_streams import LiveStreams
from elasmo.serve.request_record import RequestRecord
from elasmo.serve.routes import build_routes
from elasmo.serve.served_model import ServedModel
from tests.serve.engine_pools import EnginePools
from tests.serve.tiny import CONFIG, tiny_model

MODEL = ServedModel("tiny", "fp_test", CONFIG.decoder.max_seq, 1_700_000_000, 256)
LIMITS = LimitsConfig(image_bytes=20_000, image_pixels=10_000)
QUESTION = "what digit is this?"


class Endpoint:
    """A running service and what it wrote down."""

    def __init__(self, **settings: Any) -> None:
        model, self.processor = tiny_model()
        self.pools = EnginePools(model, self.processor)
        self.records: list[RequestRecord] = []
        config = ServeConfig(limits=LIMITS, **settings)
        self.service = ChatService(MODEL, self.processor, config, self.pools, self.records.append)
        self.app = build_routes(self.service, config, self.stats)

    def streams(self) -> LiveStreams:
        streams: LiveStreams = self.app.state.streams
        return streams

    async def stats(self) -> dict[str, Any]:
        return {}

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=30) as client:
            yield client

    def run(self, work: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with self.client() as client:
                return await work(client)

        result = asyncio.run(main())
        # Whatever the requests were: nothing they held is still held.
        assert self.service.admission.in_flight == 0
        stats = self.pools.engine.stats()
        assert (stats.running, stats.free_blocks) == (0, stats.total_blocks)
        return result

    def chat(self, **fields: Any) -> httpx.Response:
        return self.run(lambda client: client.post("/v1/chat/completions", json=request(**fields)))

    def oracle(self, max_tokens: int, seed: int = 0, temperature: float = 1.0) -> tuple[str, list[int]]:
        """Text and tokens of the same request on the engine alone."""
        prompt = self.processor.encode_chat([Message("user", (Text(QUESTION),))], LIMITS, True)
        params = SamplingParams(max_tokens, temperature, 1.0, seed)
        tokens = self.pools.engine.generate(prompt, params)
        return self.processor.decode(tokens), tokens


def request(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "seed": 0, **fields}
