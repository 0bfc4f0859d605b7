"""API keys: who is let in, what each key may take, and how its refusals read."""

from __future__ import annotations

import hashlib

import pytest

from elasmo.config import ConfigError, KeyConfig, load
from elasmo.serve.callers import Callers
from elasmo.serve.openai_errors import ApiError
from tests.serve.clock import Clock


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_without_keys_anybody_may_do_everything() -> None:
    callers = Callers({})
    assert callers.identify(None) is callers.identify("Bearer whatever")
    callers.admin(None)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "Basic alpha", "alpha", "Bearer alphaé"])
def test_a_missing_or_unknown_key_is_401(header: str | None) -> None:
    callers = Callers({"a": KeyConfig(sha256=digest("alpha"))})
    with pytest.raises(ApiError) as caught:
        callers.identify(header)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert caught.value.headers["WWW-Authenticate"] == "Bearer"
    assert "wrong" not in caught.value.message


def test_keys_are_told_apart_by_their_hash() -> None:
    callers = Callers({"a": KeyConfig(sha256=digest("alpha")), "b": KeyConfig(sha256=digest("beta"), weight=2.0)})
    assert [callers.identify(f"Bearer {key}").name for key in ("alpha", "beta")] == ["a", "b"]
    assert callers.identify("bearer beta").weight == 2.0


def test_only_admins_see_behind_the_api() -> None:
    callers = Callers({"a": KeyConfig(sha256=digest("alpha")), "root": KeyConfig(sha256=digest("omega"), admin=True)})
    callers.admin("Bearer omega")
    with pytest.raises(ApiError) as caught:
        callers.admin("Bearer alpha")
    assert (caught.value.status, caught.value.code) == (403, "admin_only")


def test_requests_a_minute_are_429_with_the_seconds_to_wait() -> None:
    clock = Clock()
    caller = Callers({"a": KeyConfig(sha256=digest("x"), requests_per_minute=4)}, clock).identify("Bearer x")
    for _ in range(4):
        caller.spend_request()
    with pytest.raises(ApiError) as caught:
        caller.spend_request()
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "15")
    clock.now += 15
    caller.spend_request()


def test_tokens_a_minute_count_the_most_and_return_the_rest() -> None:
    clock = Clock()
    caller = Callers({"a": KeyConfig(sha256=digest("x"), tokens_per_minute=600)}, clock).identify("Bearer x")
    caller.spend_tokens(500)
    with pytest.raises(ApiError) as caught:
        caller.spend_tokens(150)
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "5")
    caller.give_back_tokens(400)
    caller.spend_tokens(150)
    with pytest.raises(ApiError) as caught:
        caller.spend_tokens(601)
    assert (caught.value.status, caught.value.param) == (400, "max_tokens")


@pytest.mark.parametrize("keys", ["{a: {sha256: alpha}}", "{a: {}}", "{a: {sha256: null}}"])
def test_a_key_in_clear_is_refused(keys: str) -> None:
    with pytest.raises(ConfigError, match="sha256"):
        load(None, [f"serve.keys={keys}"], {})


def test_two_names_for_one_key_are_refused() -> None:
    key = f"{{sha256: {digest('alpha')}}}"
    with pytest.raises(ConfigError, match="same sha256"):
        load(None, [f"serve.keys={{a: {key}, b: {key}}}"], {})
