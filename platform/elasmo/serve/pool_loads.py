"""What an ingress knows of the pools without asking them: what it has sent there and not got back. Feeds auto mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from elasmo.config import ServeConfig
from elasmo.model.encoded import Encoded
from elasmo.serve.affinity import BLOCK, PrefixMap, prefix_digests
from elasmo.serve.route import Route, Situation, choose_route


class PoolLoads:
    """Counts the calls of one ingress replica; other ingress replicas are taken to send as much.

    Args:
        config: the mode, and the size of the pools.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        blocks = config.engine.blocks * config.engine.block_size // BLOCK if config.engine.prefix_cache else 0
        self._in_prefill: PrefixMap[str] = PrefixMap(blocks * config.prefill.replicas)
        self._in_decode: PrefixMap[str] = PrefixMap(blocks * config.decode.replicas)
        self._prefill_tokens = 0
        self._sequences = 0

    def route(self, prompt: Encoded) -> Route:
        """Where a prompt is to run now."""
        config = self._config
        if config.mode != "auto":
            return config.mode
        return choose_route(config.mode, config.handover_tokens, self.situation(prompt))

    def situation(self, prompt: Encoded) -> Situation:
        """As the policy sees it."""
        digests, ingresses = prefix_digests(prompt), self._config.ingress.replicas
        return Situation(
            prompt_tokens=len(prompt.tokens),
            cached_in_prefill=self._in_prefill.find(digests)[1],
            cached_in_decode=self._in_decode.find(digests)[1],
            prefill_tokens=self._prefill_tokens * ingresses / self._config.prefill.replicas,
            decode_sequences=self._sequences * ingresses / self._config.decode.replicas,
        )

    @contextmanager
    def prefilling(self, prompt: Encoded) -> Iterator[None]:
        """While a prompt is with a prefill replica, whose cache has it afterwards."""
        digests = prefix_digests(prompt)
        fresh = max(1, len(prompt.tokens) - self._in_prefill.find(digests)[1])
        self._prefill_tokens += fresh
        try:
            yield
        finally:
            self._prefill_tokens -= fresh
        self._in_prefill.add(digests, "prefill")

    @contextmanager
    def decoding(self, prompt: Encoded | None = None) -> Iterator[None]:
        """While a sequence is with a decode replica, whose cache has the prompt that it computes."""
        if prompt is not None:
            self._in_decode.add(prefix_digests(prompt), "decode")
        self._sequences += 1
        try:
            yield
        finally:
            self._sequences -= 1
