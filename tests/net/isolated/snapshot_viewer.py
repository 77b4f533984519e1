"""Hostile DOM snapshots in a real browser; run by tests/end_to_end/test_snapshot_viewer.py. Case 96.

The browser and the deployment are in a network that has only loopback.
"""

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.browser import Page, chromium
from tests.support.factories import frame
from tests.support.hostile_snapshots import make_snapshots, write_naively
from tests.support.http_service import RunningService, running_service

#: How long a page has to send what it would send.
SETTLE_S = 0.25
CLICK_ALL = "document.querySelectorAll('a, button, input').forEach(item => item.click())"
NAMES = sorted(make_snapshots(""))
assert len(NAMES) >= 30


@dataclass
class Listener:
    """Server that records every request, and shows pages of its own."""

    url: str = ""
    requests: list[str] = field(default_factory=list)
    pages: dict[str, str] = field(default_factory=dict)


@contextmanager
def listening() -> Iterator[Listener]:
    """Run a listener while the block runs."""
    listener = Listener()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = listener.pages.get(self.path)
            if page is None and self.path != "/favicon.ico":
                listener.requests.append(self.path)
            self.send_response(404 if page is None else 200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write((page or "").encode())

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        listener.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield listener
        server.shutdown()


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    """Yield a listener that hostile snapshots name."""
    with listening() as started:
        yield started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Yield a deployment that answers over HTTP."""
    with running_service(tmp_path_factory.mktemp("service")) as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Yield the tab of a browser."""
    with chromium(Path(tmp_path_factory.mktemp("profile"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def frame_urls(service: RunningService, listener: Listener) -> dict[str, str]:
    """Return the addresses of stored snapshots by name."""
    snapshots = make_snapshots(listener.url)
    headers = {"Authorization": f"Bearer {service.key}"}
    with httpx.Client(base_url=service.url, headers=headers, trust_env=False) as client:
        session = client.post("/v1/sessions", json={"workflow": "hostile", "start": True}).json()["id"]
        address = f"/v1/sessions/{session}/frames"
        urls = {}
        for number, (name, dom) in enumerate(snapshots.items()):
            sent = client.post(address, json={"frames": [frame(number, id=f"frm_{number}", dom=dom)]})
            assert sent.status_code == 202, sent.text
            urls[name] = f"{service.url}{address}/frm_{number}/dom"
    return urls


def show(page: Page, url: str, headers: dict[str, str]) -> tuple[bool, list[str]]:
    """Open an address and click everything; return whether a script ran, and what the page requested."""
    page.visit("about:blank")
    page.call("Network.setExtraHTTPHeaders", headers=headers)
    page.events.clear()
    assert page.visit(url) is None
    time.sleep(SETTLE_S)
    ran = page.evaluate("document.title") == "ran"
    page.evaluate(CLICK_ALL)
    time.sleep(SETTLE_S)
    ran = ran or page.evaluate("document.title") == "ran"
    requested = [
        event["params"]["request"]["url"]
        for event in page.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    return ran, [request for request in requested if request != url and not request.startswith("data:")]


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_snapshot_runs_and_loads_nothing(
    page: Page, service: RunningService, listener: Listener, frame_urls: dict[str, str], name: str
) -> None:
    listener.requests.clear()
    headers = {"Authorization": f"Bearer {service.key}", "Accept": "text/html"}
    ran, requested = show(page, frame_urls[name], headers)
    assert page.evaluate("document.contentType") == "text/html"
    assert page.evaluate("document.characterSet") == "UTF-8"
    assert (ran, requested, listener.requests) == (False, [], [])


@pytest.mark.parametrize("name", NAMES)
def test_without_protection_the_snapshot_reaches_the_listener_or_runs(
    page: Page, listener: Listener, name: str
) -> None:
    listener.requests.clear()
    written = write_naively(make_snapshots(listener.url)[name]["html"])
    listener.pages["/control"] = f"<!doctype html>{written}"
    ran, _ = show(page, f"{listener.url}/control", {})
    until = time.monotonic() + 10
    while not ran and not listener.requests and time.monotonic() < until:
        time.sleep(0.05)
        ran = page.evaluate("document.title") == "ran"
    assert ran or listener.requests
