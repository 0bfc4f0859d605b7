"""The chat app for `serve run serve_apps/chat.yaml`: an OpenAI-compatible endpoint over prefill and decode pools."""

from elasmo.serve.application import build

__all__ = ["build"]
