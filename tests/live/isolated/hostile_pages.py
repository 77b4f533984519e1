"""Hostile pages in the browser of live replays; run by tests/live/test_isolation.py. Contract §8.

The browser and its servers are in a network without a way out.
"""

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from recorder.live.browser import Browser, NoBrowser
from recorder.live.proxy import FilteringProxy
from recorder.net.addresses import AllowList
from recorder.net.outbound_guard import AddressGuard
from recorder.net.reachable_hosts import ReachableHosts
from recorder.setting_parsers import LiveSandbox
from recorder.settings import Settings
from tests.support.browser import Page, chromium, find_chromium
from tests.support.hostile_pages import ESCAPES, HEADERS, OTHERS, SERVICE, WORKER

SETTLE_S = 0.2
DOWNLOADED = b"bytes of a download 5f1c"


@dataclass
class Reached:
    """A listener of TCP and UDP on one port, which counts what comes."""

    port: int = 0
    seen: list[str] = field(default_factory=list)


@contextmanager
def listening() -> Iterator[Reached]:
    """Listen while the block runs; every connection gets an empty answer."""
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    reached = Reached(listener.getsockname()[1])
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("10.9.9.1", reached.port))

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                reached.seen.append("tcp")
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(5)
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

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
class Site:
    """The allowed server: a page for each case, redirects and scripts."""

    url: str
    fill: Callable[[str], str]


@pytest.fixture(scope="module")
def reached() -> Iterator[Reached]:
    """A listener that must not be reached."""
    with listening() as started:
        yield started


@pytest.fixture(scope="module")
def site(reached: Reached) -> Iterator[Site]:
    """The allowed server."""

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
            body = fill(scripts.get(name) or {**ESCAPES, **OTHERS}.get(name, "")).encode()
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
        there = f"http://127.0.0.1:{reached.port}"
        filled = text.replace("{there}", there).replace("{port}", str(reached.port))
        return filled.replace("{here}", f"http://localhost:{server.server_port}")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(f"http://localhost:{server.server_port}", fill)
        server.shutdown()


@pytest.fixture(scope="module")
def proxy(site: Site) -> Iterator[FilteringProxy]:
    """A proxy whose operator lists all of loopback, and whose workspace allows the one server."""
    started = FilteringProxy(
        ReachableHosts([site.url.removeprefix("http://")]),
        AddressGuard(AllowList.parse(("loopback",)), takes_http=True),
    )
    started.start()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def browser(proxy: FilteringProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser of the sandbox. In this network's namespace of users there is only root."""
    live = LiveSandbox(user="root", no_sandbox=True, chromium=find_chromium())
    settings = Settings.from_env({}, data_dir=tmp_path_factory.mktemp("data"))
    started = Browser(Settings(**{**vars(settings), "live": live}), proxy)
    try:
        started.start((1280, 800))
        yield started
    finally:
        started.close()


@pytest.fixture(scope="module")
def open_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A browser without proxy: the control."""
    with chromium(Path(tmp_path_factory.mktemp("profile")), "--headless=new") as page:
        yield page


def visit(browser: Browser, url: str) -> dict[str, Any]:
    """Open a page, click its button, and return what it became."""
    browser.call("goto", url=url, timeout_ms=5_000)
    browser.call("pause", ms=100)
    nodes = browser.call("read")
    index = _find_index(nodes["html"])
    if index is not None:
        sent = browser.call(
            "perform", index=index, drop=None, type="click", value=None, key=None, delta=None, button="left",
            dialogs=[], version=None, timeout_ms=2_000,
        )  # fmt: skip
        assert sent == {"sent": True}
    browser.call("pause", ms=int(SETTLE_S * 1_000))
    after = browser.call("read")
    browser.call("switch_to_popup", is_expected=False)
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


def test_hostile_pages_reach_nothing(
    browser: Browser, site: Site, proxy: FilteringProxy, reached: Reached
) -> None:
    reached.seen.clear()
    escaped = {}
    for name in ESCAPES:
        visit(browser, f"{site.url}/{name}")
        if reached.seen:
            escaped[name] = list(reached.seen)
            reached.seen.clear()
    time.sleep(1)
    assert (escaped, reached.seen) == ({}, [])
    assert proxy.blocked_requests >= len(ESCAPES) / 2


@pytest.mark.parametrize("name", sorted(ESCAPES))
def test_without_the_sandbox_the_page_reaches_the_listener(
    open_browser: Page, site: Site, reached: Reached, name: str
) -> None:
    open_browser.visit("about:blank")
    reached.seen.clear()
    # Now and then Chromium drops a navigation of the page's own; then the page is opened again.
    for _ in range(3):
        open_browser.visit(f"{site.url}/{name}")
        open_browser.wait_for("document.readyState != 'loading'")
        with suppress(AssertionError):  # it has gone elsewhere
            open_browser.evaluate("document.getElementById('go')?.click()")
        until = time.monotonic() + 5
        while not reached.seen and time.monotonic() < until:
            time.sleep(0.02)
        if reached.seen:
            return
    pytest.fail("The page reached the listener in none of three visits.")


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_files_printers_and_permissions_are_out_of_reach(browser: Browser, site: Site, name: str) -> None:
    after = visit(browser, f"{site.url}/{name}")
    assert after["url"].startswith(site.url) and after["title"] != "leaked"
    assert "root:" not in str(after["html"])
    assert browser.call("goto", url="file:///etc/passwd", timeout_ms=1_000)["error"]


def test_a_user_that_this_namespace_lacks_is_no_error_of_ours(proxy: FilteringProxy, tmp_path: Path) -> None:
    live = LiveSandbox(user="nobody", chromium=find_chromium())
    settings = Settings.from_env({}, data_dir=tmp_path)
    with_user = Browser(Settings(**{**vars(settings), "live": live}), proxy)
    with pytest.raises(NoBrowser, match=r"cannot run as nobody here .*RECORDER_LIVE_USER"):
        with_user.start((800, 600))
    with_user.close()
    assert with_user.folder is None


def test_a_download_leaves_no_file(browser: Browser, site: Site) -> None:
    visit(browser, f"{site.url}/attachment")
    assert browser.folder is not None
    kept = [path for path in browser.folder.rglob("*") if path.is_file() and DOWNLOADED in path.read_bytes()]
    assert kept == []
