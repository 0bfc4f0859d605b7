"""Serving on Ray Serve: an OpenAI-compatible ingress over prefill and decode pools that hand KV over by reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray import serve

    from elasmo.config import Config

__all__ = ["app"]


def app(config: Config) -> serve.Application:
    """The Serve application for `config.serve.published`; see `elasmo.serve.application`."""
    from elasmo.serve.application import app as build_app

    return build_app(config)
