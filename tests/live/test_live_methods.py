"""Methods per host: what the proxy of a live replay passes on, also inside tunnels. Contract §8."""

import base64
import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from recorder.live.proxy import FilteringProxy
from recorder.net.addresses import AllowList
from recorder.net.outbound_guard import AddressGuard
from recorder.net.reachable_hosts import ReachableHosts
from tests.support.certificates import server_context, trusting_context, write_authority
from tests.support.databases import create_file
from tests.support.factories import event
from tests.support.live_replays import running_live_app, show, work_live
from tests.support.replay_requests import allow_hosts
from tests.support.sealing import seal_all

RECORDED = "https://pay.example"
PAGE = b"""<!doctype html><title>Pay</title><h1>Pay</h1>
<form method=post action=/paid><button id=pay>Pay now</button></form>"""


@contextmanager
def running_shop() -> Iterator[tuple[int, list[str]]]:
    """Yield a server on https://localhost: its port, and the method and path of each request."""
    requests: list[str] = []

    class Shop(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(PAGE)))
            self.end_headers()
            self.wfile.write(PAGE)

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        server.socket = server_context("localhost").wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port, requests
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def proxy(port: int, *methods: str, trust: ssl.SSLContext | None = None) -> Iterator[FilteringProxy]:
    """Yield a proxy that reaches the server, with these methods alone."""
    host = f"localhost:{port}"
    guard = AddressGuard(AllowList.parse(("loopback",)), takes_http=True)
    hosts = ReachableHosts([host], {host: methods})
    started = FilteringProxy(hosts, guard, trust=trust or trusting_context())
    started.start()
    try:
        yield started
    finally:
        started.stop()


def send(started: FilteringProxy, port: int, line: str) -> bytes:
    """Send a request through a tunnel, trusting the proxy's key alone; return the answer."""
    with socket.create_connection(("127.0.0.1", started.port), timeout=10) as plain:
        head = f"CONNECT localhost:{port} HTTP/1.1\r\nProxy-Authorization: {started.credentials}\r\n\r\n"
        plain.sendall(head.encode())
        assert plain.recv(65_536).startswith(b"HTTP/1.1 200 ")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain) as tunnel:
            certificate = x509.load_der_x509_certificate(tunnel.getpeercert(True) or b"")
            key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            assert base64.b64encode(hashlib.sha256(key).digest()).decode() == started.key_hash
            tunnel.sendall(f"{line} HTTP/1.1\r\nHost: other.example\r\n\r\n".encode())
            received = b""
            while chunk := tunnel.recv(65_536):
                received += chunk
            return received


def test_a_tunnel_to_a_host_of_limited_methods_takes_these_alone() -> None:
    with running_shop() as (port, requests):
        with proxy(port, "GET", "HEAD") as started:
            assert send(started, port, "GET /a?b=1").endswith(PAGE)
            assert started.blocked_requests == 0
            for number, line in enumerate(("POST /a", "PUT /a", "Other /a", "CONNECT /a"), 1):
                assert send(started, port, line).startswith(b"HTTP/1.1 403 "), line
                assert started.blocked_requests == number
            assert started.has_refused(f"https://localhost:{port}/a")
            assert send(started, port, "GET https://localhost/a").startswith(b"HTTP/1.1 400 ")
        # Who does not vouch for the host gets nothing of it.
        with proxy(port, "GET", trust=ssl.create_default_context()) as started:
            assert send(started, port, "GET /a").startswith(b"HTTP/1.1 502 ")
    assert requests == ["GET /a?b=1"]


def test_a_tunnel_without_tls_to_a_host_of_limited_methods_ends() -> None:
    with (
        running_shop() as (port, requests),
        proxy(port, "GET") as started,
        socket.create_connection(("127.0.0.1", started.port), timeout=10) as plain,
    ):
        head = f"CONNECT localhost:{port} HTTP/1.1\r\nProxy-Authorization: {started.credentials}\r\n\r\n"
        plain.sendall(head.encode())
        assert b" 200 " in plain.recv(65_536)
        plain.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in plain.recv(65_536)
        assert plain.recv(65_536) == b""
    assert (started.blocked_requests, requests) == (1, [])


def test_several_entries_of_a_port_leave_what_all_of_them_list() -> None:
    hosts = ReachableHosts(["a.example"], {"a.example": ["GET", "POST"], "a.example:443": ["GET", "PUT"]})
    guard = AddressGuard(AllowList.parse(()))
    assert FilteringProxy(hosts, guard).key_hash is not None
    assert FilteringProxy(ReachableHosts(["a.example"]), guard).key_hash is None


def test_a_live_replay_that_may_only_read_sends_no_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = tmp_path / "authority.pem"
    write_authority(authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    pay = {"role": "button", "name": "Pay now", "selectors": ["#pay", "text/Pay now"]}
    signals = [{"type": "navigation", "url": f"{RECORDED}/paid", "method": "POST"}]
    items = (
        event(0, "navigate", url=f"{RECORDED}/"),
        event(100, "click", target=pay, url=f"{RECORDED}/", signals=signals),
    )
    ends = []
    with (
        running_live_app(tmp_path, create_file(tmp_path)) as (service, _),
        running_shop() as (port, requests),
    ):
        caller, host = service.make_caller(scope="write replay:live"), f"localhost:{port}"
        session_id = caller.make_session(workflow="pay")
        assert caller.add_events(session_id, *items).status_code == 202
        assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
        seal_all(caller.service.runtime)
        allow_hosts(caller, host)
        policy = {"base_url_map": {RECORDED: f"https://{host}"}, "repeat_consequential": True}
        for methods in (["GET"], ["GET", "POST"]):
            sent = {**policy, "allow_methods": {host: methods}}
            body = {"session_id": session_id, "sandbox": "live", "policy": sent}
            replay_id = caller.post("/v1/replays", body).json()["id"]
            work_live(caller)
            shown = show(caller, replay_id)
            ends.append((shown["status"], (shown["divergence"] or {}).get("kind")))
            assert (shown["summary"]["blocked_requests"] > 0) is (methods == ["GET"]), shown
            assert requests.count("POST /paid") == (methods != ["GET"])
    assert ends == [("diverged", "egress_blocked"), ("completed", None)]
