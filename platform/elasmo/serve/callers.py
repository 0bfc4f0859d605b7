"""Who asks: the API keys of the configuration, told apart by their hashes, and what each may still take."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from time import monotonic

from elasmo.config import KeyConfig
from elasmo.serve.openai_errors import ApiError, invalid_request, rate_limited
from elasmo.serve.rate_limit import RateLimit


class Caller:
    """One key, or everybody where there are no keys. Used on one event loop.

    Attributes:
        name: of the key, as the configuration has it.
        weight: its share of the places against others that wait.
        max_in_flight: its completions at a time, None without a limit.
        in_flight: its completions now.
    """

    def __init__(self, name: str, key: KeyConfig | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.name = name
        self.weight = key.weight if key is not None else 1.0
        self.admin = key is None or key.admin
        self.max_in_flight = key.max_in_flight if key is not None else None
        self.in_flight = 0
        requests = key.requests_per_minute if key is not None else None
        tokens = key.tokens_per_minute if key is not None else None
        self._requests = None if requests is None else RateLimit(requests, clock)
        self._tokens = None if tokens is None else RateLimit(tokens, clock)

    def spend_request(self) -> None:
        """Counts a request.

        Raises:
            ApiError: 429 with the seconds until the next one may come.
        """
        if self._requests is None:
            return
        wait_s = self._requests.wait_s(1)
        if wait_s > 0:
            raise rate_limited(f"the key {self.name!r} may ask {self._requests.per_minute} times a minute", wait_s)
        self._requests.take(1)

    def spend_tokens(self, amount: int) -> None:
        """Counts the most tokens that a request can come to, before it starts; `give_back_tokens` has the rest.

        Raises:
            ApiError: 429 with the seconds until there are as many; 400 for more than there ever are.
        """
        if self._tokens is None:
            return
        limit = f"the key {self.name!r} may use {self._tokens.per_minute} tokens a minute"
        if amount > self._tokens.per_minute:
            raise invalid_request(
                f"The request may come to {amount} tokens and {limit}; ask for a shorter answer.", "max_tokens"
            )
        wait_s = self._tokens.wait_s(amount)
        if wait_s > 0:
            raise rate_limited(limit, wait_s)
        self._tokens.take(amount)

    def give_back_tokens(self, amount: int) -> None:
        """Returns tokens that were counted and never made."""
        if self._tokens is not None:
            self._tokens.give_back(amount)


class Callers:
    """The keys of one ingress replica; without any, everybody is one caller who may do everything."""

    def __init__(self, keys: Mapping[str, KeyConfig], clock: Callable[[], float] = monotonic) -> None:
        self._anybody = None if keys else Caller("anybody", None, clock)
        self._by_hash = {key.sha256: Caller(name, key, clock) for name, key in keys.items()}

    def identify(self, authorization: str | None) -> Caller:
        """The caller of a request with this Authorization header.

        Raises:
            ApiError: 401 without a key, or with one that nobody has.
        """
        if self._anybody is not None:
            return self._anybody
        scheme, _, key = (authorization or "").partition(" ")
        # Looked up by hash: how long it takes says nothing about the key.
        caller = self._by_hash.get(hashlib.sha256(key.strip().encode()).hexdigest())
        if scheme.lower() != "bearer" or caller is None:
            problem = (
                "This server needs an API key" if authorization is None else "This server does not know the API key"
            )
            raise ApiError(
                401,
                f"{problem}; send one that serve.keys has as 'Authorization: Bearer KEY'.",
                "invalid_request_error",
                "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return caller

    def admin(self, authorization: str | None) -> None:
        """Lets pass who may look behind the API.

        Raises:
            ApiError: 401 as `identify`; 403 for a key that may only ask.
        """
        caller = self.identify(authorization)
        if not caller.admin:
            raise ApiError(
                403,
                f"The key {caller.name!r} may not see this; use one with serve.keys.{caller.name}.admin=true.",
                "invalid_request_error",
                "admin_only",
            )
