"""Decides what one step computes: every running sequence's next token, and pieces of prompts within a budget of tokens.

A pure function. Decoding comes first, so prompts never hold up a stream for more than one budget; of sequences that
need pages when none are left the youngest gives its own up and is computed again later. The oldest never does while
there is a younger one, so all of them finish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """A sequence as the scheduler sees it.

    Attributes:
        known: its tokens, prompt and generated.
        computed: how many of them are in its pages; of one that waits, how many the prefix cache holds.
        blocks: pages it holds; of one that waits, those of its beginning that somebody else holds, which cost nothing.
        exclusive: pages that become free when it gives its own up.
        preemptible: whether its KV can be computed here again.
    """

    request_id: str
    known: int
    computed: int
    blocks: int
    exclusive: int = 0
    preemptible: bool = True

    @property
    def remaining(self) -> int:
        return self.known - self.computed


@dataclass(frozen=True)
class Budget:
    """What a step may use.

    Attributes:
        prompt_tokens: of prompts, on top of the next token of each running sequence.
        batch: sequences that run at a time.
        free_blocks: pages nobody holds.
        block_size: tokens in a page.
    """

    prompt_tokens: int
    batch: int
    free_blocks: int
    block_size: int


@dataclass(frozen=True)
class Chunk:
    """Tokens `start` to `start + tokens` of a sequence."""

    request_id: str
    start: int
    tokens: int


@dataclass(frozen=True)
class Plan:
    """One step.

    Attributes:
        preempt: give up their pages and wait again, before anything else.
        admit: leave the queue, with pages for all their tokens.
        chunks: what is computed, of running and admitted sequences.
    """

    preempt: tuple[str, ...] = ()
    admit: tuple[str, ...] = ()
    chunks: tuple[Chunk, ...] = ()


def schedule(running: Sequence[Need], waiting: Sequence[Need], budget: Budget) -> Plan:
    """The next step of sequences that run and of those that wait, each oldest first."""
    chunks: dict[str, Chunk] = {}
    preempted: list[str] = []
    free, left = budget.free_blocks, budget.prompt_tokens
    for need in sorted(running, key=lambda need: need.remaining > 1):
        if need.request_id in preempted:
            continue
        decodes = need.remaining == 1
        tokens = 1 if decodes else min(need.remaining, left)
        if tokens == 0:
            continue
        cost = max(0, -(-(need.computed + tokens) // budget.block_size) - need.blocks)
        while cost > free:
            victim = _youngest(running, preempted) or need
            preempted.append(victim.request_id)
            chunks.pop(victim.request_id, None)
            free += victim.exclusive
            if victim is need:
                break
        else:
            free -= cost
            left -= 0 if decodes else tokens
            chunks[need.request_id] = Chunk(need.request_id, need.computed, tokens)
    admitted: list[str] = []
    places = budget.batch - len(running)
    for need in () if preempted else waiting:
        cost = -(-need.known // budget.block_size) - need.blocks
        if left == 0 or len(admitted) == places or cost > free:
            break
        free -= cost
        tokens = min(need.remaining, left)
        left -= tokens
        admitted.append(need.request_id)
        chunks[need.request_id] = Chunk(need.request_id, need.computed, tokens)
    return Plan(tuple(preempted), tuple(admitted), tuple(chunks.values()))


def _youngest(running: Sequence[Need], preempted: Sequence[str]) -> Need | None:
    candidates = (need for need in reversed(running) if need.preemptible and need.request_id not in preempted)
    return next(candidates, None)
