"""Whether the endpoint's port is free, asked before anything is started."""

from __future__ import annotations

import socket


class PortInUse(ValueError):
    """Another process listens there."""


def check_port(host: str, port: int) -> None:
    """Returns when `host:port` can be bound now.

    Raises:
        PortInUse: it cannot; one sentence with the mend.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = "is in use by another process" if error.errno == 98 else f"cannot be bound ({error.strerror})"
            raise PortInUse(
                f"Port {port} on {host} {reason}; stop that process or choose another port with serve.port=<port>."
            ) from None
