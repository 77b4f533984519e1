"""Hostile servers; run by tests/net/test_outbound.py, in a network that has only loopback. Contract §6."""

import asyncio
import gzip
import ssl
import time

import pytest

from recorder.net.addresses import AllowList
from recorder.net.outbound_client import BODY_BYTES, TOTAL_S, OutboundClient, OutboundExchange
from recorder.net.outbound_guard import AddressGuard
from tests.support.certificates import server_context, trusting_context
from tests.support.isolated_calls import (
    HEADS,
    PUBLIC,
    Dialer,
    Resolver,
    Serve,
    answering,
    call,
    call_server,
    serving,
)

OK = b"HTTP/1.1 200 OK\r\n"


async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a gigabyte, as fast as it is taken."""
    writer.write(OK + b"Content-Length: 1073741824\r\n\r\n")
    for _number in range(16_384):
        writer.write(b"x" * 65_536)
        await writer.drain()
    raise AssertionError("all of it was taken")


def test_host_path_and_headers_are_those_of_the_url() -> None:
    exchange = call_server(answering(OK + b"Content-Length: 2\r\nX-Said: a\r\nX-Said: b\r\n\r\nhi"))
    (port, heads) = HEADS.popitem()
    first, *headers = heads[0].split("\r\n")
    assert first == "POST /in?a=1 HTTP/1.1"
    assert {
        f"Host: hooks.example:{port}",
        "X-Mine: 1",
        "Accept-Encoding: identity",
        "Connection: close",
    } <= set(headers)
    assert (exchange.status, exchange.body, exchange.headers["x-said"]) == (200, b"hi", "a, b")
    assert exchange.is_success


def test_the_certificate_is_checked_for_the_name_of_the_url() -> None:
    queries: list[str | None] = []
    context = server_context("hooks.example")
    context.sni_callback = lambda _, name, __: queries.append(name)
    served = {"scheme": "https", "ssl": context}
    exchange = call_server(answering(OK + b"\r\n"), trust=trusting_context(), **served)
    assert (exchange.error, exchange.status, queries) == (None, 200, ["hooks.example"])


def test_a_certificate_of_another_name_is_refused() -> None:
    served = {"scheme": "https", "ssl": server_context("other.example")}
    assert call_server(answering(OK + b"\r\n"), trust=trusting_context(), **served).error == "tls"


def test_a_certificate_that_nobody_vouches_for_is_refused() -> None:
    exchange = call_server(answering(OK + b"\r\n"), scheme="https", ssl=server_context("hooks.example"))
    assert (exchange.error, exchange.status) == ("tls", None)


def test_a_server_without_tls_is_told_as_such() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("a request came without encryption")

    async def run() -> OutboundExchange:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(OK + b"\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            client = OutboundClient(AddressGuard(AllowList.parse(("loopback",))), total_s=5)
            return await client.post(f"https://127.0.0.1:{port}/", {}, b"{}")

    assert asyncio.run(run()).error == "tls"


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[OutboundExchange, list[str]]:
        async with serving(answering(OK + b"\r\n")) as proxy:
            for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy}")
            client = OutboundClient(AddressGuard(AllowList.parse(()), Resolver([PUBLIC])), dial=Dialer())
            return await client.post("https://hooks.example/", {}, b"{}"), HEADS[proxy]

    exchange, heads = asyncio.run(run())
    assert (exchange.error, heads) == ("connection", [])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_failure_and_is_not_followed(status: int) -> None:
    async def run() -> tuple[OutboundExchange, list[str]]:
        async with serving(answering(OK + b"\r\n")) as elsewhere:
            head = f"HTTP/1.1 {status} Moved\r\nLocation: http://127.0.0.1:{elsewhere}/\r\n\r\n"
            async with serving(answering(head.encode())) as port:
                client = OutboundClient(AddressGuard(AllowList.parse(("loopback",))))
                return await client.post(f"http://127.0.0.1:{port}/", {}, b"{}"), HEADS[elsewhere]

    exchange, heads = asyncio.run(run())
    assert (exchange.error, exchange.status, exchange.is_success, heads) == ("redirect", status, False, [])


def test_reading_stops_at_four_kilobytes() -> None:
    began = time.monotonic()
    exchange = call_server(endless)
    assert (exchange.body, exchange.body_truncated, exchange.is_success) == (b"x" * BODY_BYTES, True, True)
    assert time.monotonic() - began < 4


def test_a_body_of_exactly_four_kilobytes_is_whole() -> None:
    body = b"y" * BODY_BYTES
    exchange = call_server(answering(OK + b"Content-Length: 4096\r\n\r\n" + body))
    assert (exchange.body, exchange.body_truncated) == (body, False)


async def interim(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send interim answers, as fast as they are taken."""
    for _number in range(16_384):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000)
        await writer.drain()
    raise AssertionError("all of it was taken")


def test_interim_answers_without_end_are_a_broken_connection() -> None:
    began = time.process_time()
    exchange = call_server(interim)
    assert (exchange.error, exchange.status) == ("connection", None)
    assert time.process_time() - began < TOTAL_S / 2


def test_some_interim_answers_are_skipped() -> None:
    interim_answers = b"HTTP/1.1 102 Processing\r\n\r\n" * 20
    exchange = call_server(answering(interim_answers + OK + b"Content-Length: 2\r\n\r\nhi"))
    assert (exchange.error, exchange.status, exchange.body) == (None, 200, b"hi")


def test_a_body_of_which_most_is_framing_is_cut() -> None:
    chunk = b"1;" + b"e" * 50 + b"\r\na\r\n"
    exchange = call_server(answering(OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 4_000))
    assert exchange.is_success and exchange.body_truncated and set(exchange.body) == set(b"a")


def test_a_compressed_body_stays_as_it_came() -> None:
    bomb = gzip.compress(bytes(100_000_000))
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    exchange = call_server(answering(head + bomb))
    assert (exchange.body, exchange.body_truncated) == (bomb[:BODY_BYTES], True)


@pytest.mark.parametrize(
    "serve",
    [
        answering(b"", pause_s=20),
        answering(*[OK, *[b"X-A: 1\r\n"] * 100], pause_s=0.1),
        answering(*[OK + b"Content-Length: 100\r\n\r\n", *[b"x"] * 100], pause_s=0.1),
        answering(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 100, pause_s=0.1),
    ],
    ids=["silent", "slow head", "slow body", "never final"],
)
def test_an_answer_that_drips_is_cut_off_in_time(serve: Serve) -> None:
    began = time.monotonic()
    exchange = call_server(serve, total_s=0.5)
    assert (exchange.error, exchange.is_success) == ("timeout", False)
    assert 0.4 < time.monotonic() - began < 3


def test_ten_seconds_is_what_a_receiver_has() -> None:
    assert TOTAL_S == 10


def test_a_resolver_that_hangs_is_cut_off_too() -> None:
    async def hang(host: str) -> list[str]:
        await asyncio.sleep(20)
        return [PUBLIC]

    assert call("https://hooks.example/", resolve=hang, dial=Dialer(), total_s=0.2).error == "timeout"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000,
        OK + b"Content-Length: 9\r\n\r\nhi",
    ],
    ids=["nothing", "no HTTP", "endless header", "cut short"],
)
def test_an_answer_that_breaks_off_is_a_broken_connection(said: bytes) -> None:
    assert call_server(answering(said)).error == "connection"


def test_a_port_that_nobody_listens_on_is_a_broken_connection() -> None:
    assert call("http://127.0.0.1:9/", allowed=("loopback",)).error == "connection"


def test_of_several_addresses_the_first_that_answers_is_taken() -> None:
    async def run() -> OutboundExchange:
        async with serving(answering(OK + b"\r\n")) as port:
            guard = AddressGuard(AllowList.parse(("loopback",)), Resolver(["::1", "127.0.0.2", "127.0.0.1"]))
            return await OutboundClient(guard).post(f"http://hooks.example:{port}/", {}, b"{}")

    assert asyncio.run(run()).status == 200


def test_headers_are_kept_printable_and_bounded() -> None:
    lines = b"".join(b"X-%d: %s\r\n" % (n, b"v" * 500) for n in range(100))
    exchange = call_server(answering(OK + b"X-Bad: a\x1b[31m\xff\r\n" + lines + b"\r\n"))
    assert all(value.isprintable() for value in exchange.headers.values())
    assert sum(map(len, exchange.headers.values())) <= 8_192


def test_trust_is_by_default_what_browsers_trust() -> None:
    client = OutboundClient(AddressGuard(AllowList.parse(())))
    context: ssl.SSLContext = client._ssl
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.cert_store_stats()["x509_ca"] > 50
