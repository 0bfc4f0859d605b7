"""Admission: a hard bound on completions in flight, and a Retry-After that follows how long requests take."""

from __future__ import annotations

import pytest

from elasmo.serve.admission import Admission
from elasmo.serve.openai_errors import ApiError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_choices_count_one_by_one_and_places_come_back() -> None:
    admission = Admission(3, 0)
    with admission.admit(2), admission.admit(1), pytest.raises(ApiError) as caught, admission.admit(1):
        pass
    assert caught.value.status == 503
    assert caught.value.code == "overloaded"
    assert (admission.in_flight, admission.refused) == (0, 1)


def test_a_failed_request_gives_its_place_back() -> None:
    admission = Admission(1, 0)
    with pytest.raises(KeyError), admission.admit(1):
        raise KeyError
    with admission.admit(1):
        assert admission.in_flight == 1


def test_retry_after_is_the_mean_duration_in_whole_seconds() -> None:
    clock = Clock()
    admission = Admission(1, 0, clock)
    for _ in range(40):
        with admission.admit(1):
            clock.now += 6.5
    with admission.admit(1), pytest.raises(ApiError) as caught, admission.admit(1):
        pass
    assert caught.value.headers["Retry-After"] == "7"


def test_more_choices_than_places_are_a_bad_request() -> None:
    with pytest.raises(ApiError) as caught, Admission(2, 0).admit(3):
        pass
    assert (caught.value.status, caught.value.param) == (400, "n")


def test_kv_is_refused_before_it_overflows_its_share() -> None:
    admission = Admission(9, 100)
    with admission.hold_kv(60), pytest.raises(ApiError) as caught, admission.hold_kv(60):
        pass
    assert caught.value.status == 503 and "60 bytes of KV" in caught.value.message
    assert admission.kv_bytes == 0
    with admission.hold_kv(100), pytest.raises(ApiError) as caught, admission.hold_kv(101):
        pass
    assert caught.value.status == 400
