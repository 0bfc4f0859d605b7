"""Assembles the Serve application: ingress, prefill pool, decode pool, sized by the configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from elasmo.config import Config, PoolConfig, load
from elasmo.model.published import verify
from elasmo.serve.affinity import BLOCK
from elasmo.serve.decode import Decode
from elasmo.serve.ingress import Ingress
from elasmo.serve.prefill import Prefill
from elasmo.serve.served_model import read_served_model


class ServeSetupError(ValueError):
    """The application cannot be built from this configuration."""


def app(config: Config) -> serve.Application:
    """The application that serves `config.serve.published`; run it with `serve.run` or `serve run`.

    Raises:
        ServeSetupError: no published model is configured.
        PublishedError: the folder holds none, or a damaged one.
    """
    settings = config.serve
    if settings.published is None:
        raise ServeSetupError("serve.published is null; set it to a folder written by `elasmo publish RUN`.")
    # Replicas have working directories of their own; and a bad folder is refused here, not in a replica's log.
    published = str(Path(settings.published).resolve())
    read_served_model(published, settings)
    verify(published)
    blocks = settings.engine.blocks * settings.engine.block_size // BLOCK
    router = RequestRouterConfig(
        request_router_class="elasmo.serve.affinity_router:AffinityRouter",
        request_router_kwargs={
            "prefixes": blocks * max(settings.prefill.replicas, settings.decode.replicas),
            "slack": settings.affinity_slack,
        },
    )
    prefill = _deployment(Prefill, settings.prefill, settings.prefill.max_ongoing).options(request_router_config=router)
    decode = _deployment(Decode, settings.decode, settings.decode.max_ongoing).options(request_router_config=router)
    # Ingress replicas refuse by themselves, in OpenAI's shape; Serve's own limits only catch what never reaches them.
    most = 4 * settings.max_queue + 64
    ingress = _deployment(serve.ingress()(Ingress), settings.ingress, most).options(max_queued_requests=most)
    pools = (pool.bind(published, settings) for pool in (prefill, decode))
    return ingress.bind(published, settings, *pools)


def build(args: Mapping[str, Any]) -> serve.Application:
    """The builder named in `serve_apps/chat.yaml`.

    Args:
        args: `published` (folder), `config` (YAML file), both optional, and `overrides`, a mapping or list of
            `section.key=value`.

    Raises:
        ConfigError: an unknown argument or configuration key.
    """
    unknown = set(args) - {"published", "config", "overrides"}
    if unknown:
        raise ServeSetupError(f"Unknown argument {min(unknown)!r}; the app takes published, config and overrides.")
    overrides = args.get("overrides") or []
    if isinstance(overrides, str):
        overrides = overrides.split()
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    if args.get("published"):
        overrides = [*overrides, f"serve.published={json.dumps(args['published'])}"]
    return app(load(args.get("config"), overrides))


def _deployment(replica: type, pool: PoolConfig, max_ongoing: int) -> serve.Deployment:
    make = serve.deployment(
        name=replica.__name__.lower(),
        num_replicas=pool.replicas,
        max_ongoing_requests=max_ongoing,
        ray_actor_options={"num_cpus": pool.cpus, "num_gpus": pool.gpus, "resources": pool.resources},
        # A dead replica is noticed by the request that was on it; this is how soon it is replaced.
        health_check_period_s=1.0,
        health_check_timeout_s=10.0,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=10.0,
    )
    deployment: serve.Deployment = make(replica)
    return deployment
