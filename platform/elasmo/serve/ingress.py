"""The ingress replica: speaks HTTP, encodes prompts, and owns each request and its KV references from start to end."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from elasmo.config import ServeConfig
from elasmo.serve.chat_service import ChatService
from elasmo.serve.metrics import Metrics
from elasmo.serve.pools import ReplicaPools
from elasmo.serve.ray_adapter import ask_all
from elasmo.serve.request_record import RequestRecord, Totals
from elasmo.serve.routes import build_routes
from elasmo.serve.served_model import read_served_model

_STATS_TIMEOUT_S = 5.0


class Ingress:
    """Shell around `ChatService`: it gets handles to the pools and its ASGI app is built in the replica."""

    def __init__(
        self, published: str, config: ServeConfig, prefill: DeploymentHandle, decode: DeploymentHandle
    ) -> None:
        self._config = config
        self._handles = {"prefill": prefill, "decode": decode}
        self._totals = Totals()
        self._metrics = Metrics()
        model, processor = read_served_model(published, config)
        self._service = ChatService(model, processor, config, ReplicaPools(prefill, decode, config), self._on_end)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve's hook for an app built in the replica, so that no app object is pickled."""
        return build_routes(self._service, self._config, self._stats)

    def _on_end(self, record: RequestRecord) -> None:
        self._totals.add(record)
        self._metrics.add(record)

    async def _stats(self) -> dict[str, Any]:
        """This ingress's totals and the figures of every replica of the pools."""
        asked = (ask_all(handle, "stats", _STATS_TIMEOUT_S) for handle in self._handles.values())
        pools = await asyncio.gather(*asked)
        admission = self._service.admission
        ingress = {
            "pid": os.getpid(),
            "in_flight": admission.in_flight,
            "running": admission.running,
            "waiting": admission.waiting,
            "kv_held_bytes": admission.store_bytes,
            "refused": admission.refused,
        }
        return {"ingress": {**ingress, **self._totals.as_dict()}, **dict(zip(self._handles, pools, strict=True))}
