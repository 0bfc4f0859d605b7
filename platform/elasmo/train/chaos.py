"""Faults on purpose, at a step and rank that the configuration names: for tests, and for drills on a cluster."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elasmo.config import ChaosConfig
from elasmo.model.fragments import MANIFEST
from elasmo.model.stores import Store
from elasmo.train import retention


class Chaos:
    """What is to happen to one rank in one life of the worker group.

    Args:
        attempt: which life it is; an event belongs to one, so that a step that is done again is left in peace.
    """

    def __init__(self, events: Sequence[ChaosConfig], rank: int, attempt: int) -> None:
        self._events = [event for event in events if (event.rank, event.attempt) == (rank, attempt)]

    def begin(self, step: int, model: nn.Module, checkpoints: Store) -> None:
        """Before a step, as numbered in the log: what happens to the process, its weights, or the newest checkpoint."""
        for event in self._due(step):
            if event.do == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif event.do == "freeze":
                time.sleep(event.seconds)
            elif event.do == "flip":
                parameter = next(model.parameters())
                flip_bit(getattr(parameter, "ds_tensor", parameter))  # under ZeRO 3 the rank's part
            elif event.do == "corrupt":
                corrupt_newest(checkpoints)

    def losses(self, step: int, losses: Tensor) -> None:
        """Between a slot's losses and whoever looks at them."""
        if any(event.do == "nan" for event in self._due(step)):
            losses.data.fill_(math.nan)

    def _due(self, step: int) -> list[ChaosConfig]:
        return [event for event in self._events if event.step == step]


def flip_bit(tensor: Tensor) -> None:
    """Flips the lowest bit of the first element's bytes."""
    raw = tensor.data.view(-1)[:1].view(torch.uint8)
    raw[0] ^= 1


def corrupt_newest(checkpoints: Store) -> str | None:
    """Flips the last byte of a file of the newest committed checkpoint; returns the file, None if there is none."""
    places = retention.committed(checkpoints)
    if not places:
        return None
    place = places[-1]
    name = next(name for name in place.files() if name != MANIFEST and name.endswith(".safetensors"))
    data = bytearray(place.read(name))
    data[-1] ^= 1
    place.put(name, bytes(data))
    return f"{place.url}/{name}"
