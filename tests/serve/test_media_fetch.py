"""Fetching from the web: only where allowed, only from public hosts, checked at every hop, bounded in every way."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from elasmo.config import FetchConfig, LimitsConfig
from elasmo.model.sample import Image
from elasmo.serve.media_fetch import FetchRefused, fetch
from elasmo.serve.media_parts import to_messages
from elasmo.serve.openai_errors import ApiError
from elasmo.serve.openai_protocol import ChatMessage
from tests.serve.tiny import png

ALLOWED = FetchConfig(allow=True, timeout_s=1.0, redirects=2)
PUBLIC, OTHER = "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, _, rest = self.path[1:].partition("/")
        if path == "to":
            self.send_response(302)
            self.send_header("Location", rest)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path == "missing":
            self.send_error(404)
        else:
            self.send_response(200)
            if path != "endless":
                self.send_header("Content-Length", str(10**9 if path == "huge" else len(png())))
            self.end_headers()
            if path == "slow":
                time.sleep(1.3)
            self.wfile.write(bytes(200_000) if path == "endless" else png())

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Web:
    """A network in which names have the addresses a test gives them, and every public one is a local server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.names: dict[str, list[str]] = {"example.com": [PUBLIC], "img.example.com": [OTHER]}
        self.opened: list[tuple[str, int]] = []

    def resolve(self, host: str, port: int) -> Sequence[str]:
        if host not in self.names:
            raise socket.gaierror("unknown name")
        return self.names[host]

    def open(self, address: str, port: int, timeout_s: float) -> socket.socket:
        self.opened.append((address, port))
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)


@pytest.fixture
def web() -> Iterator[Web]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield Web(server.server_port)
    server.shutdown()
    server.server_close()


def refused(url: str, web: Web, config: FetchConfig = ALLOWED, limit: int = 10_000) -> str:
    with pytest.raises(FetchRefused) as caught:
        fetch(url, limit, config, web)
    return str(caught.value)


def test_a_public_image_is_fetched_from_the_address_that_was_checked(web: Web) -> None:
    assert fetch("http://example.com/a.png?x=1", 10_000, ALLOWED, web) == png()
    assert fetch("http://EXAMPLE.com./to/http://img.example.com/a.png", 10_000, ALLOWED, web) == png()
    assert web.opened == [(PUBLIC, 80), (PUBLIC, 80), (OTHER, 80)]


def test_nothing_is_fetched_unless_it_is_allowed(web: Web) -> None:
    """sgl-project/sglang#17269: remote fetching has to be switched on."""
    assert "serve.fetch.allow" in refused("http://example.com/a.png", web, FetchConfig())
    assert web.opened == []


INNER = [
    "127.0.0.1",
    "10.0.0.7",
    "172.16.3.4",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "::ffff:127.0.0.1",
    "64:ff9b::a00:1",
    "2002:7f00:1::",
    "2001:0:7f00:1::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", INNER)
def test_inner_addresses_are_refused_directly_by_name_and_behind_a_redirect(address: str, web: Web) -> None:
    """sgl-project/sglang#17269: cloud metadata and inner services, also behind DNS and a public site's redirect."""
    literal = f"[{address.partition('%')[0]}]" if ":" in address else address
    web.names |= {
        address.partition("%")[0]: [address],
        "inner.example.org": [address],
        "two.example.org": [PUBLIC, address],
    }
    for url in (f"http://{literal}/latest/meta-data", "http://inner.example.org/", "http://two.example.org/"):
        assert "not a public host" in refused(url, web)
        assert web.opened == []
        assert "not a public host" in refused(f"http://example.com/to/{url}", web)
        assert web.opened == [(PUBLIC, 80)]
        web.opened.clear()


def test_a_name_that_changes_its_address_gains_nothing(web: Web) -> None:
    """DNS rebinding: one answer is checked, and that very address is connected to."""
    answers = iter([[PUBLIC], ["127.0.0.1"]])
    web.resolve = lambda host, port: next(answers)  # type: ignore[method-assign]
    assert fetch("http://example.com/a.png", 10_000, ALLOWED, web) == png()
    assert web.opened == [(PUBLIC, 80)]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file:///etc/passwd", "not an http"),
        ("gopher://example.com/", "not an http"),
        ("http:///a.png", "not an http"),
        ("http://user:secret@example.com/a.png", "credentials"),
        ("http://example.com:22/", "port 22"),
        ("https://example.com:80/", "port 80"),
        ("http://[::1/", "no URL"),
        ("http://example.com/a b", "white space"),
        ("http://unknown.example.net/", "cannot be read"),
        ("http://example.com/missing", "answered 404"),
        ("http://example.com/to/file:///etc/passwd", "not an http"),
        ("http://example.com/huge", "1000000000 bytes"),
        ("http://example.com/endless", "more than 10000 bytes"),
        ("http://example.com/slow", "longer than serve.fetch.timeout_s=1 s"),
        ("http://example.com/to//to//to//to//a.png", "serve.fetch.redirects=2"),
        ("https://example.com/a.png", "cannot be read"),  # the server there speaks no TLS
    ],
)
def test_what_is_not_fetched_says_why(url: str, says: str, web: Web) -> None:
    assert says in refused(url, web)


def test_only_listed_hosts_are_fetched_from(web: Web) -> None:
    config = FetchConfig(allow=True, hosts=("img.example.com",))
    assert fetch("http://img.example.com/a.png", 10_000, config, web) == png()
    assert "serve.fetch.hosts" in refused("http://example.com/a.png", web, config)
    assert "serve.fetch.hosts" in refused("http://img.example.com/to/http://example.com/a.png", web, config)
    assert "serve.fetch.hosts" in refused("http://evilimg.example.com/", web, config)


def message(*urls: str) -> list[ChatMessage]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [ChatMessage.model_validate({"role": "user", "content": parts})]


def test_a_part_that_names_a_url_becomes_its_image_or_a_400(web: Web) -> None:
    (turn,) = to_messages(message("http://example.com/a.png"), LimitsConfig(), None, ALLOWED, web)
    assert turn.segments == (Image(png()),)
    for config, urls in ((ALLOWED, ["http://example.com/missing"]), (ALLOWED, ["http://example.com/a"] * 9)):
        with pytest.raises(ApiError) as caught:
            to_messages(message(*urls), LimitsConfig(), None, config, web)
        assert caught.value.status == 400 and caught.value.message.endswith((".", "instead."))
