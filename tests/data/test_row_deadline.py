"""A row that takes too long is given up, and nothing is left ringing."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from elasmo.data.row_deadline import RowDeadline, row_deadline


def test_what_sleeps_is_woken() -> None:
    began = time.monotonic()
    with pytest.raises(RowDeadline, match=r"more than 0\.05 s \(data\.row_timeout_s\)"), row_deadline(0.05):
        time.sleep(30)
    assert time.monotonic() - began < 5


def test_python_code_that_never_ends_is_ended() -> None:
    with pytest.raises(RowDeadline), row_deadline(0.05):
        while True:
            pass


def test_what_is_in_time_rings_no_later_and_the_handler_is_as_before() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with row_deadline(0.05):
        pass
    time.sleep(0.1)
    with pytest.raises(KeyError), row_deadline(0.05):
        raise KeyError("its own error")
    time.sleep(0.1)
    assert signal.getsignal(signal.SIGALRM) == before


def test_in_another_thread_there_is_none() -> None:
    done = []

    def read() -> None:
        with row_deadline(0.01):
            time.sleep(0.05)
        done.append(True)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert done == [True]
