"""What one request was and cost, written down once when it ends; counters and metrics are made from these."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class RequestRecord:
    """One chat completion request.

    Attributes:
        began: monotonic seconds at its arrival.
        status: HTTP status; 499 when the client went away.
        seconds: from its arrival to its end.
        ttft_s: from its arrival to the first token, None when there was none.
        prompt_tokens: with media placeholders.
        cached_tokens: of the prompt, how many a prefix cache held for the first choice; later ones find the first's.
        completion_tokens: over all choices.
        kv_bytes: KV handed from prefill to decode, again after a failure.
        retries: prefill and decode calls beyond the first ones.
        local: choices whose prompt ran in a decode replica, without a hand-over.
    """

    began: float = field(default_factory=time.monotonic)
    status: int = 200
    seconds: float = 0.0
    ttft_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    choices: int = 1
    kv_bytes: int = 0
    retries: int = 0
    local: int = 0

    def first_token(self) -> None:
        """Notes the time to the first token, now."""
        self.ttft_s = time.monotonic() - self.began

    def end(self) -> None:
        """Notes the duration, now."""
        self.seconds = time.monotonic() - self.began

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds a token after the first, of one choice; None below two tokens."""
        tokens = self.completion_tokens / self.choices
        if self.ttft_s is None or tokens < 2:
            return None
        return (self.seconds - self.ttft_s) / (tokens - 1)


@dataclass
class Totals:
    """Sums over the requests an ingress replica has finished."""

    requests: int = 0
    by_status: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    kv_bytes: int = 0
    retries: int = 0
    local: int = 0

    def add(self, record: RequestRecord) -> None:
        """Counts one finished request."""
        self.requests += 1
        self.by_status[str(record.status)] = self.by_status.get(str(record.status), 0) + 1
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_tokens
        self.completion_tokens += record.completion_tokens
        self.kv_bytes += record.kv_bytes
        self.retries += record.retries
        self.local += record.local

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
