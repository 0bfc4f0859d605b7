"""Elastic training: the step loop on DeepSpeed, checkpoints, and the Ray Train side that survives lost nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasmo.train.driver import RunResult, TrainError, fit
    from elasmo.train.publication import Publication, publish

__all__ = ["Publication", "RunResult", "TrainError", "fit", "publish"]


def __getattr__(name: str) -> Any:
    # Lazy: reading a checkpoint or a run folder must not import Ray Train and DeepSpeed.
    if name in ("RunResult", "TrainError", "fit"):
        import importlib

        return getattr(importlib.import_module("elasmo.train.driver"), name)
    if name in ("Publication", "publish"):
        import importlib

        return getattr(importlib.import_module("elasmo.train.publication"), name)
    raise AttributeError(f"module 'elasmo.train' has no attribute {name!r}")
