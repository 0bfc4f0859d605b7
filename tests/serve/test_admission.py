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
    admission = Admission(3)
    with admission.admit(2), admission.admit(1), pytest.raises(ApiError) as caught, admission.admit(1):
        pass
    assert caught.value.status == 503
    assert caught.value.code == "overloaded"
    assert (admission.in_flight, admission.refused) == (0, 1)


def test_a_failed_request_gives_its_place_back() -> None:
    admission = Admission(1)
    with pytest.raises(KeyError), admission.admit(1):
        raise KeyError
    with admission.admit(1):
        assert admission.in_flight == 1


def test_retry_after_is_the_mean_duration_in_whole_seconds() -> None:
    clock = Clock()
    admission = Admission(1, clock)
    for _ in range(40):
        with admission.admit(1):
            clock.now += 6.5
    with admission.admit(1), pytest.raises(ApiError) as caught, admission.admit(1):
        pass
    assert caught.value.headers["Retry-After"] == "7"
