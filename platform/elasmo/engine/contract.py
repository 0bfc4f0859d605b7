"""What every inference engine does: run prompts, hand KV over and take it over, and step all sequences together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from elasmo.engine.kv import KVCachePayload
from elasmo.engine.logprobs import TokenLogprobs
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
        logprobs: where the request asked for them.
        prompt_logprobs: with a sequence's first token, where the request asked for them.
        cached_tokens: with its first token, how many of the prompt's a prefix cache held.
    """

    request_id: str
    index: int
    token: int
    finish: Finish | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    cached_tokens: int = 0


@dataclass(frozen=True)
class EngineStats:
    """A reading of an engine.

    Attributes:
        running: sequences in the batch.
        waiting: sequences that have put out no token yet, in the queue or in the batch.
        free_blocks: pages that a sequence could have; those that only the prefix cache knows are among them.
        cached_blocks: pages that the prefix cache knows.
        tokens_generated: put out.
        prompt_tokens: of prompts that were started here, those that were handed over left out.
        prompt_tokens_cached: how many of them the prefix cache had.
        preemptions: times a sequence gave up its pages.
    """

    running: int
    waiting: int
    free_blocks: int
    total_blocks: int
    tokens_generated: int
    cached_blocks: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    preemptions: int = 0


class Engine(Protocol):
    """An inference engine. Not thread-safe: one thread owns it."""

    def prefill(self, prompt: Encoded, params: SamplingParams) -> KVCachePayload:
        """Runs a prompt and samples token 0; holds nothing afterwards.

        Raises:
            EngineFull: no room now.
            EngineRefused: prompt and `max_tokens` do not fit the context or the pages, or the grammar is none.
        """

    def embed(self, prompt: Encoded) -> NDArray[np.float32]:
        """The mean of a prompt's last hidden states, float32 [hidden], of length 1; raises as `prefill` does."""

    def add(self, request_id: str, prompt: Encoded, params: SamplingParams, replay: Sequence[int] = ()) -> None:
        """Queues a prompt to be run here from beginning to end; `replay` as in `admit`.

        Raises:
            EngineRefused: as `prefill` does.
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

    def failures(self) -> list[tuple[str, str]]:
        """Sequences that ended without a token since this was asked last, with the reason; the others are unharmed."""

    def abort(self, request_id: str) -> None:
        """Drops a sequence and frees its pages; an unknown id is ignored."""

    def stats(self) -> EngineStats: ...

    def generate(self, prompt: Encoded, params: SamplingParams) -> list[int]:
        """All tokens of a prompt, alone, in this process: the oracle of every split or batched path."""
