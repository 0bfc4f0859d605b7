"""Auto mode: whether a prompt runs in the prefill pool and is handed over, or where it is decoded. A pure function.

Both ways are measured in tokens computed, of which a replica does about the same number a second whatever they are:

- split: those before it in the prefill pool, its own that the pool's prefix cache has not, and the hand-over;
- local: its own that the decode pool's prefix cache has not, once for itself and once for each sequence that shares the
  replica, since all of these wait while a prompt is computed.

The way with the smaller sum costs everybody together least. So short and cached prompts stay local, long ones are split
as soon as somebody would have to wait for them, and a congested prefill pool leaves prompts to idle decode replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["auto", "split", "local"]
Route = Literal["split", "local"]


@dataclass(frozen=True)
class Situation:
    """A prompt, and what its ingress knows of the pools.

    Attributes:
        prompt_tokens: of the prompt.
        cached_in_prefill, cached_in_decode: how many of them the pool's prefix caches are believed to hold.
        prefill_tokens: of prompts that are with a prefill replica, on average.
        decode_sequences: with a decode replica, on average.
    """

    prompt_tokens: int
    cached_in_prefill: int
    cached_in_decode: int
    prefill_tokens: float
    decode_sequences: float


def choose_route(mode: Mode, handover_tokens: int, situation: Situation) -> Route:
    """Where a prompt is to be computed.

    Args:
        mode: anything but `auto` is the answer itself.
        handover_tokens: tokens of a prompt that are computed in the time that handing its KV over takes.
    """
    if mode != "auto":
        return mode
    # At least one token is computed, whatever is cached.
    split = situation.prefill_tokens + max(1, situation.prompt_tokens - situation.cached_in_prefill) + handover_tokens
    local = max(1, situation.prompt_tokens - situation.cached_in_decode) * (1 + situation.decode_sequences)
    return "local" if local <= split else "split"
