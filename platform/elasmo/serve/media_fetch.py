"""Fetches media from the web, where an operator allows it, without becoming a way into the operator's network.

Every address is checked after DNS and the connection goes to the very address that was checked, so a name that answers
differently the second time gains nothing; every redirect is a new request with the same checks. Only public unicast
addresses, only the listed hosts if there is a list, only http and https on their own ports, no credentials, no cookies,
no compression; bytes, seconds and redirects are bounded.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urljoin, urlsplit

from elasmo.config import FetchConfig

_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK = 64 << 10
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class FetchRefused(ValueError):
    """A URL that is not fetched, or did not give what was wanted, as a clause that completes "... because"."""


class Network(Protocol):
    """The network as `fetch` needs it."""

    def resolve(self, host: str, port: int) -> Sequence[str]:
        """Addresses of a host; raises OSError."""

    def open(self, address: str, port: int, timeout_s: float) -> socket.socket:
        """A connection to an address; raises OSError."""


class SystemNetwork:
    """DNS and TCP of this machine."""

    def resolve(self, host: str, port: int) -> Sequence[str]:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

    def open(self, address: str, port: int, timeout_s: float) -> socket.socket:
        return socket.create_connection((address, port), timeout=timeout_s)


@dataclass(frozen=True)
class _Target:
    scheme: str
    host: str
    port: int
    path: str


def fetch(
    url: str,
    limit_bytes: int,
    config: FetchConfig,
    network: Network | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> bytes:
    """The bytes behind a URL; blocks.

    Raises:
        FetchRefused: fetching is not allowed, the URL or where it leads is not, the answer is none, late or too large.
    """
    if not config.allow:
        raise FetchRefused("this server takes data URIs only (serve.fetch.allow is false)")
    network = network or SystemNetwork()
    ends = clock() + config.timeout_s
    for _ in range(config.redirects + 1):
        target = _target(url, config)
        try:
            address = _public(target.host, network.resolve(target.host, target.port))
            with closing(_Connection(target, address, network, _left(ends, clock, config))) as connection:
                connection.request("GET", target.path, headers={"Accept-Encoding": "identity", "User-Agent": "elasmo"})
                answer = connection.getresponse()
                location = answer.getheader("Location")
                if answer.status in _REDIRECTS and location:
                    url = urljoin(url, location)
                    continue
                if answer.status != 200:
                    raise FetchRefused(f"{target.host} answered {answer.status}")
                return _read(answer, connection, limit_bytes, lambda: _left(ends, clock, config))
        except TimeoutError:
            raise FetchRefused(f"{target.host} took longer than serve.fetch.timeout_s={config.timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise FetchRefused(f"{target.host} cannot be read ({type(error).__name__})") from None
    raise FetchRefused(f"it leads through more than serve.fetch.redirects={config.redirects} redirects")


class _Connection(http.client.HTTPConnection):
    """HTTP to a host at an address that was checked; TLS verifies the host's name."""

    def __init__(self, target: _Target, address: str, network: Network, timeout_s: float) -> None:
        super().__init__(target.host, target.port, timeout=timeout_s)
        self._target = target
        self._address = address
        self._network = network
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = self._network.open(self._address, self._target.port, self._timeout_s)
        self.sock.settimeout(self._timeout_s)
        if self._target.scheme == "https":
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self._target.host)


def _target(url: str, config: FetchConfig) -> _Target:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip(".").lower(), parts.port
    except ValueError:
        raise FetchRefused(f"{url[:80]!r} is no URL") from None
    if parts.scheme not in _PORTS or not host:
        raise FetchRefused(f"{url[:80]!r} is not an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise FetchRefused("a URL with credentials is not fetched")
    if port not in (None, _PORTS[parts.scheme]):
        raise FetchRefused(f"port {port} of {host} is not the one of {parts.scheme}")
    if config.hosts and not any(host == allowed or host.endswith(f".{allowed}") for allowed in config.hosts):
        raise FetchRefused(f"{host} is not among serve.fetch.hosts")
    if any(character <= " " or character == "\x7f" for character in url):
        raise FetchRefused("it holds white space or control characters")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Target(parts.scheme, host, _PORTS[parts.scheme], path)


def _public(host: str, addresses: Sequence[str]) -> str:
    """The first address, if all of them are public: a host that also names an inner one is up to something."""
    if not addresses:
        raise FetchRefused(f"{host} has no address")
    for text in addresses:
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            raise FetchRefused(f"{host} has the address {text!r}, which is none") from None
        inner = address
        if isinstance(address, ipaddress.IPv6Address):
            inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, address))[1]
            if address in _NAT64:
                inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if not all(one.is_global and not one.is_multicast for one in (address, inner)):
            # The address stays untold: it would map the network.
            raise FetchRefused(f"{host} is not a public host")
    return addresses[0]


def _left(ends: float, clock: Callable[[], float], config: FetchConfig) -> float:
    left = ends - clock()
    if left <= 0:
        raise TimeoutError
    return left


def _read(
    answer: http.client.HTTPResponse,
    connection: http.client.HTTPConnection,
    limit_bytes: int,
    left: Callable[[], float],
) -> bytes:
    announced = answer.getheader("Content-Length")
    if announced is not None and announced.isdecimal() and int(announced) > limit_bytes:
        raise FetchRefused(f"it has {announced} bytes and at most {limit_bytes} are read")
    data = bytearray()
    while len(data) <= limit_bytes:
        if connection.sock is not None:  # gone where the answer ends with the connection
            connection.sock.settimeout(left())
        chunk = answer.read1(min(_CHUNK, limit_bytes + 1 - len(data)))
        if not chunk:
            return bytes(data)
        data += chunk
        left()
    raise FetchRefused(f"it has more than {limit_bytes} bytes")
