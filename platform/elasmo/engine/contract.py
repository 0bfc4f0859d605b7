"""What every inference engine does: run a prompt, take over its KV, and step all sequences together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from elasmo.engine.kv import KVCachePayload
from elasmo.engine.sampling import SamplingParams
from elasmo.model.encoded import Encoded

Finish = Literal["stop", "length"]


class EngineFull(RuntimeError):
    """No room for another sequence now; try again when one has ended."""


class EngineRefused(ValueError):
    """A sequence this engine can never run, with the numbers."""


@dataclass(frozen=True)
class StepOutput:
    """A token of one sequence.

    Attributes:
        index: place among the sequence's generated tokens.
        finish: why the sequence ended with this token, None while it goes on.
    """

    request_id: str
    index: int
    token: int
    finish: Finish | None


@dataclass(frozen=True)
class EngineStats:
    """A reading of an engine."""

    running: int
    waiting: int
    free_blocks: int
    total_blocks: int
    tokens_generated: int


class Engine(Protocol):
    """An inference engine. Not thread-safe: one thread owns it."""

    def prefill(self, prompt: Encoded, params: SamplingParams) -> KVCachePayload:
        """Runs a prompt and samples token 0; keeps nothing.

        Raises:
            EngineRefused: prompt and `max_tokens` do not fit the context.
        """

    def admit(
        self, request_id: str, payload: KVCachePayload, params: SamplingParams, replay: Sequence[int] = ()
    ) -> None:
        """Takes over a prompt's KV. Tokens in `replay` were sent before: they are recomputed and not put out again.

        Raises:
            EngineFull: no room now.
            EngineRefused: never any room.
            KVMismatchError: the KV is not for this engine, or damaged.
        """

    def step(self) -> list[StepOutput]:
        """One token for every running sequence; first tokens of newly admitted ones come at once, without computing."""

    def abort(self, request_id: str) -> None:
        """Drops a sequence and frees its pages; an unknown id is ignored."""

    def stats(self) -> EngineStats: ...

    def generate(self, prompt: Encoded, params: SamplingParams) -> list[int]:
        """All tokens of a prompt, alone, in this process: the oracle of every split or batched path."""
