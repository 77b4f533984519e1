"""Servers of tests with hostile pages: the allowed one, and listeners that must not be reached."""

import asyncio
import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from recorder.live.browser import Browser
from recorder.net.addresses import CalledAddress
from recorder.net.reachable_hosts import ReachableHosts
from tests.support.hostile_pages import (
    ESCAPES,
    FORBIDDEN,
    HEADERS,
    HOST_PAGES,
    LOOK_UPS,
    OTHERS,
    PUBLIC,
    REBINDING,
    SERVICE,
    WORKER,
)
from tests.support.stub_resolver import StubResolver

DOWNLOADED = b"bytes of a download 5f1c"
_PAGES = {**ESCAPES, **OTHERS, **LOOK_UPS, **HOST_PAGES}
_SETTLE_MS = 200


class EveryHost(ReachableHosts):
    """A list with every host: the guard of addresses decides alone."""

    def __init__(self) -> None:
        super().__init__(())

    def contains_target(self, target: CalledAddress) -> bool:
        """Return True."""
        return True


@dataclass
class Dialer:
    """Connects as a proxy does by itself, and notes where."""

    dialled: set[tuple[str, int]] = field(default_factory=set)

    async def __call__(self, host: str, port: int) -> Any:
        self.dialled.add((host, port))
        return await asyncio.open_connection(host, port)


@dataclass
class Reached:
    """A listener of TCP and UDP on one port, which counts what comes."""

    port: int = 0
    seen: list[str] = field(default_factory=list)
    #: Paths of the requests by HTTP.
    paths: set[str] = field(default_factory=set)

    def clear(self) -> None:
        """Forget what came."""
        self.seen.clear()
        self.paths.clear()


@contextmanager
def listening(host: str = "::", port: int = 0, *, body: str = "") -> Iterator[Reached]:
    """Listen while the block runs; every connection gets one answer, and is closed.

    Args:
        host: where to listen; by default at all addresses, and by UDP at that of the interface `in0`.
        port: where to listen; by default a free one.
        body: of the answer.
    """
    is_everywhere = host == "::"
    family = socket.AF_INET6 if is_everywhere else socket.AF_INET
    listener = socket.create_server((host, port), family=family, dualstack_ipv6=is_everywhere)
    reached = Reached(listener.getsockname()[1])
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("10.9.9.1" if is_everywhere else host, reached.port))
    answered = (
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                reached.seen.append("tcp")
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(5)
            words = connection.recv(65_536).decode("latin-1").split(" ", 2)
            if len(words) == 3:
                reached.paths.add(words[1])
            connection.sendall(answered)

    def receive() -> None:
        with suppress(OSError):
            while True:
                datagrams.recv(2_048)
                reached.seen.append("udp")

    for work in (accept, receive):
        threading.Thread(target=work, daemon=True).start()
    try:
        yield reached
    finally:
        listener.close()
        datagrams.close()


@dataclass
class Rebinding:
    """A public server and a forbidden one on the same port, and a name that leads to one of them."""

    public: Reached
    forbidden: Reached
    resolver: StubResolver

    @property
    def host(self) -> str:
        """The name, with the port."""
        return f"rebound.example:{self.public.port}"

    def lead_to(self, *addresses: str) -> None:
        """Let the name lead to these addresses from now on."""
        self.resolver.addresses["rebound.example"] = list(addresses)


@contextmanager
def rebinding(resolver: StubResolver) -> Iterator[Rebinding]:
    """Run both servers while the block runs; the public one has a page that asks its host again and again."""
    with listening(PUBLIC, body=REBINDING) as public, listening(FORBIDDEN, public.port) as forbidden:
        yield Rebinding(public, forbidden, resolver)


_OF_DEPLOYMENT = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    print("reached", flush=True)
    connection.close()
"""


@contextmanager
def listening_as(dagster_dir: Path) -> Iterator[tuple[int, list[str]]]:
    """Run a process of a deployment that listens; yield its port, and a word for each connection."""
    environment = {"RECORDER_DAGSTER_DIR": str(dagster_dir)}
    command = [sys.executable, "-c", _OF_DEPLOYMENT]
    seen: list[str] = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        threading.Thread(target=seen.extend, args=(process.stdout,), daemon=True).start()
        try:
            yield port, seen
        finally:
            process.kill()


@dataclass
class Site:
    """The allowed server: a page for each case, redirects and scripts."""

    url: str

    @property
    def host(self) -> str:
        """Its name and port."""
        return self.url.removeprefix("http://")


@contextmanager
def serving_pages(reached: Reached) -> Iterator[Site]:
    """Serve the hostile pages while the block runs; they try to reach a listener."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/to":
                self.send_response(302)
                self.send_header("Location", parts.query)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            name = unquote(parts.path[1:])
            scripts = {"worker.js": WORKER, "service.js": SERVICE}
            body = fill(scripts.get(name) or _PAGES.get(name, "")).encode()
            if name == "attachment":
                body = DOWNLOADED
            self.send_response(200)
            kind = "text/javascript" if name in scripts else "text/html; charset=utf-8"
            self.send_header("Content-Type", kind)
            if name == "attachment":
                self.send_header("Content-Disposition", "attachment; filename=a.txt")
            self.send_header("Content-Length", str(len(body)))
            if name in HEADERS:
                field, value = HEADERS[name]
                self.send_header(field, fill(value))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    def fill(text: str) -> str:
        there = f"127.0.0.1:{reached.port}"
        filled = text.replace("{there}", f"http://{there}").replace("{secure}", f"https://{there}")
        return filled.replace("{port}", str(reached.port)).replace(
            "{here}", f"http://localhost:{server.server_port}"
        )

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(f"http://localhost:{server.server_port}")
        server.shutdown()


def visit(browser: Browser, url: str) -> dict[str, Any]:
    """Open a page, click its button, and return what it became."""
    browser.call("goto", url=url, timeout_ms=5_000)
    browser.call("pause", ms=100)
    nodes = browser.call("read")
    index = _find_index(nodes["html"])
    if index is not None:
        sent = browser.call(
            "perform", index=index, drop=None, type="click", value=None, key=None, delta=None, button="left",
            modifiers=[], is_area=False, needs_point=False, point=None, dialogs=[], version=None,
            timeout_ms=2_000,
        )  # fmt: skip
        assert sent == {"sent": True}
    browser.call("pause", ms=_SETTLE_MS)
    after = browser.call("read")
    browser.call("switch_to_popups", names=[])
    return after


def _find_index(html: Any) -> int | None:
    """Return the position of the element `go` in document order."""
    stack, index = [html], -1
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            index += 1
            if node[1].get("id") == "go":
                return index
            stack.extend(reversed(node[2:]))
    return None
