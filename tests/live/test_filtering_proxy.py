"""Proxy of the live sandbox: it passes on what is allowed, and dials nothing else. Contract §8."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from recorder.live.proxy import FilteringProxy, ProxyLimits
from recorder.net.addresses import AllowList
from recorder.net.deployment_addresses import HostPort, OwnAddresses
from recorder.net.outbound_guard import AddressGuard
from recorder.net.reachable_hosts import ReachableHosts
from tests.support.isolated_calls import PUBLIC, Resolver
from tests.support.raw_servers import RawServer, raw_server
from tests.support.waiting import wait_for

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\nX-A: 1\r\n\r\nhi"


class Dialer:
    """Notes what is dialled, and connects to a server of the test whatever the address."""

    def __init__(self, port: int | None = None) -> None:
        self.dialled: list[tuple[str, int]] = []
        self._port = port

    async def __call__(self, host: str, port: int) -> Any:
        self.dialled.append((host, port))
        if self._port is None:
            raise ConnectionRefusedError
        return await asyncio.open_connection("127.0.0.1", self._port)


@contextmanager
def proxy(
    *hosts: str, dial: Any, resolve: Any = None, allowed: tuple[str, ...] = (), **options: Any
) -> Iterator[FilteringProxy]:
    """Yield a proxy that serves while the block runs."""
    own_addresses = OwnAddresses(options.pop("own", ()))
    guard = AddressGuard(
        AllowList.parse(allowed), resolve or Resolver([PUBLIC]), own_addresses=own_addresses, takes_http=True
    )
    started = FilteringProxy(ReachableHosts(hosts), guard, dial=dial, **options)
    started.start()
    try:
        yield started
    finally:
        started.stop()
        assert not started.is_serving


def send(proxy: FilteringProxy, request: str, *, password: bool = True, body: bytes = b"") -> bytes:
    """Return all that the proxy answers to a request."""
    credentials = f"Proxy-Authorization: {proxy.credentials}\r\n" if password else ""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
        connection.sendall(f"{request}\r\n{credentials}\r\n".encode("latin-1") + body)
        received = b""
        while chunk := connection.recv(65_536):
            received += chunk
        return received


@pytest.fixture(scope="module")
def server() -> Iterator[RawServer]:
    """Yield a server that answers every request with OK."""
    with raw_server(OK) as started:
        yield started


def test_an_allowed_request_reaches_its_host_without_the_fields_of_the_connection(server: RawServer) -> None:
    dial = Dialer(server.port)
    with proxy("shop.example", dial=dial) as started:
        answer = send(
            started,
            "POST http://SHOP.example/a?b=1 HTTP/1.1\r\nHost: other.example\r\n"
            "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\nContent-Length: 3",
            body=b"abc",
        )
        assert dial.dialled == [(PUBLIC, 80)]
        assert started.blocked_requests == 0
    head = server.heads[-1]
    assert head.startswith("POST /a?b=1 HTTP/1.1\r\nHost: shop.example\r\n")
    assert "X-Kept: 2".lower() in head.lower() and "X-Hop" not in head and "proxy" not in head.lower()
    assert answer.endswith(b"hi") and b"Connection: close" in answer and b"keep-alive" not in answer


def test_only_who_knows_the_password_uses_the_proxy() -> None:
    dial = Dialer()
    with proxy("shop.example", dial=dial) as started:
        request = "GET http://shop.example/ HTTP/1.1"
        assert b" 407 " in send(started, request, password=False)
        wrong = f"{request}\r\nProxy-Authorization: {started.credentials[:-1]}"
        assert b" 407 " in send(started, wrong, password=False)
    assert dial.dialled == []


@pytest.mark.parametrize(
    "request_line",
    [
        "GET http://other.example/",
        "GET http://shop.example:8080/",
        "GET https://shop.example/",
        "GET ftp://shop.example/",
        "GET file:///etc/passwd",
        "GET /",
        "GET http://shop.example@other.example/",
        "GET http://other.example#shop.example/",
        "GET http://shop.example.other.example/",
        "GET http://127.0.0.1/",
        "GET http://2130706433/",
        "GET http://0x7f.1/",
        "GET http://[::1]/",
        "GET http://[::ffff:127.0.0.1]/",
        "CONNECT other.example:443",
        "CONNECT shop.example:22",
        "CONNECT shop.example:443/x",
        "CONNECT shop.example:443@other.example:443",
        "CONNECT [::1]:443",
    ],
)
def test_what_is_not_allowed_is_refused_and_counted(request_line: str) -> None:
    dial = Dialer()
    with proxy("shop.example", dial=dial) as started:
        assert send(started, f"{request_line} HTTP/1.1").startswith(b"HTTP/1.1 403 ")
        assert started.blocked_requests == 1
    assert dial.dialled == []


@pytest.mark.parametrize(
    "addresses",
    [["10.0.0.1"], ["127.0.0.1"], ["169.254.169.254"], ["::1"], [PUBLIC, "10.0.0.1"], ["100.64.0.1"]],
)
@pytest.mark.parametrize("request_line", ["GET http://shop.example/", "CONNECT shop.example:443"])
def test_a_name_that_leads_to_an_address_that_is_not_public_is_refused(
    addresses: list[str], request_line: str
) -> None:
    dial = Dialer()
    with proxy("shop.example", dial=dial, resolve=Resolver(addresses)) as started:
        assert b" 403 " in send(started, f"{request_line} HTTP/1.1")
        assert started.has_refused("http://shop.example/x") is ("GET" in request_line)
    assert dial.dialled == []


def test_each_connection_goes_to_the_address_that_was_checked_for_it(server: RawServer) -> None:
    dial, resolve = Dialer(server.port), Resolver([PUBLIC], ["127.0.0.1"])
    with proxy("shop.example", dial=dial, resolve=resolve) as started:
        assert b" 200 " in send(started, "GET http://shop.example/ HTTP/1.1")
        assert b" 403 " in send(started, "GET http://shop.example/ HTTP/1.1")
    assert dial.dialled == [(PUBLIC, 80)] and resolve.asked == ["shop.example"] * 2


@pytest.mark.parametrize("name", ["localhost", "api.example"])
def test_what_the_deployment_uses_itself_is_refused_whatever_is_listed(name: str) -> None:
    dial = Dialer()
    endpoints = [HostPort("127.0.0.1", 5432), HostPort("api.example", 5432)]
    everything = ("loopback", "0.0.0.0/0", name)
    with proxy(
        f"{name}:5432", dial=dial, resolve=Resolver(["127.0.0.1"]), allowed=everything, own=endpoints
    ) as started:
        assert b" 403 " in send(started, f"GET http://{name}:5432/ HTTP/1.1")
        assert b" 403 " in send(started, f"CONNECT {name}:5432 HTTP/1.1")
    assert dial.dialled == []


def test_a_listed_address_is_reached() -> None:
    with raw_server(OK) as server:
        dial = Dialer(server.port)
        with proxy("localhost:8080", dial=dial, allowed=("127.0.0.1", "::1")) as started:
            assert b" 200 " in send(started, "GET http://localhost:8080/ HTTP/1.1")


def test_a_tunnel_passes_bytes_both_ways() -> None:
    with (
        raw_server(b"pong", until=b"ping") as server,
        proxy("shop.example", dial=Dialer(server.port)) as started,
    ):
        answer = send(started, "CONNECT shop.example:443 HTTP/1.1", body=b"ping")
    assert answer == b"HTTP/1.1 200 Connection established\r\n\r\npong"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\n\r\nfree bytes",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA\x00: b\r\n\r\n",
    ],
)
def test_an_answer_that_is_no_http_is_not_passed_on(answer: bytes) -> None:
    with raw_server(answer) as server, proxy("shop.example", dial=Dialer(server.port)) as started:
        assert b"free bytes" not in send(started, "GET http://shop.example/ HTTP/1.1")


def test_bytes_and_connections_are_capped() -> None:
    large = b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n" + b"x" * 500_000
    with (
        raw_server(large) as server,
        proxy("shop.example", dial=Dialer(server.port), limits=ProxyLimits(total_bytes=100_000)) as started,
    ):
        assert len(send(started, "GET http://shop.example/ HTTP/1.1")) <= 100_200
        assert b" 503 " in send(started, "GET http://shop.example/ HTTP/1.1")
    with (
        proxy("shop.example", dial=Dialer(), limits=ProxyLimits(connections=1)) as started,
        socket.create_connection(("127.0.0.1", started.port), timeout=5),
    ):
        wait_for(lambda: b" 503 " in send(started, "GET http://shop.example/ HTTP/1.1"))


def test_a_connection_on_which_nothing_moves_is_closed() -> None:
    with (
        raw_server(b"", until=b"never") as server,
        proxy("shop.example", dial=Dialer(server.port), limits=ProxyLimits(idle_s=0.2)) as started,
    ):
        assert send(started, "GET http://shop.example/ HTTP/1.1") == b""


def test_entries_without_a_port_are_those_of_the_web() -> None:
    hosts = ReachableHosts(["Shop.example", "erp.example:8443"])
    assert hosts.contains_entry("shop.example") and hosts.contains_entry("shop.example:443")
    assert hosts.contains_entry("erp.example:8443") and not hosts.contains_entry("erp.example")
    assert not hosts.contains_entry("shop.example:8443")
