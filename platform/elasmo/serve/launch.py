"""Brings the endpoint up on a Ray cluster from a plain process, and takes it down again."""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from types import TracebackType

import ray
from ray import serve

from elasmo.config import Config
from elasmo.serve import ray_adapter
from elasmo.serve.application import ServeSetupError, app
from elasmo.serve.http_port import check_port
from elasmo.serve.served_model import read_served_model

APP_NAME = "chat"
_ANSWER_TIMEOUT_S = 10.0


class Endpoint:
    """A running chat application; as a context manager it is taken down at the end.

    Args:
        config: `serve.*` says what and where; `ray.address` on which cluster, unless this process is connected to one.

    Attributes:
        url: where it answers.
        model: the name to ask for.
        seconds: from the start of the deployment until it answered.

    Raises:
        PortInUse: something else listens on the port.
        ServeSetupError, PublishedError: there is nothing to serve.
    """

    def __init__(self, config: Config) -> None:
        settings = config.serve
        self.url = f"http://{settings.host}:{settings.port}"
        application = app(config)
        self.model = read_served_model(str(settings.published), settings)[0].name
        self._joined = not ray.is_initialized()
        if self._joined:
            # A port in use is cheaper to find before a cluster is started than after.
            if config.ray.address == "local":
                check_port(settings.host, settings.port)
            _connect(config)
        ray_adapter.forget_controller()
        try:
            if not serve.status().proxies:
                check_port(settings.host, settings.port)
            began = time.monotonic()
            # One proxy, on the head: several raylets may share this machine and so its ports.
            serve.start(proxy_location="HeadOnly", http_options={"host": settings.host, "port": settings.port})
            serve.run(application, name=APP_NAME, route_prefix="/")
            self._check_answers()
            self.seconds = time.monotonic() - began
        except BaseException:
            if self._joined:
                ray.shutdown()
            raise

    def close(self) -> None:
        """Takes the application down, and leaves the cluster if this object joined it."""
        serve.delete(APP_NAME)
        if self._joined:
            ray.shutdown()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_answers(self) -> None:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=_ANSWER_TIMEOUT_S) as response:
                answer = json.load(response)
        except (OSError, ValueError):
            answer = {}
        if answer.get("model") != self.model:
            raise ServeSetupError(
                f"The application runs, but not at {self.url}: Ray Serve was already up in this cluster with another "
                "address, which it keeps; use that one as serve.host and serve.port, or run `serve shutdown` first."
            )


def _connect(config: Config) -> None:
    if config.ray.address == "local":
        ray.init(address="local", object_store_memory=config.ray.object_store_mb << 20, logging_level=logging.WARNING)
        return
    try:
        ray.init(address=config.ray.address, logging_level=logging.WARNING)
    except ConnectionError:
        raise ServeSetupError(
            f"ray.address is {config.ray.address!r}, but no Ray cluster answers there; run `ray start --head` "
            "first (with RAY_AUTH_MODE=token set for a cluster that has token authentication), or let "
            "`elasmo serve ray.address=local` start one."
        ) from None
