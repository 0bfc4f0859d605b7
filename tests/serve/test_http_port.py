"""A port in use is found before anything is started, with a sentence that says what to do."""

from __future__ import annotations

import socket

import pytest

from elasmo.serve.http_port import PortInUse, check_port


def test_a_taken_port_is_refused_and_a_free_one_is_not() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"Port {port} on 127.0.0.1 is in use.*serve\.port="):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_an_address_that_is_not_this_machines_is_refused() -> None:
    with pytest.raises(PortInUse, match="cannot be bound"):
        check_port("203.0.113.1", 8000)
