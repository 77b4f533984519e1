"""Chromium without a window, driven over its DevTools protocol; it calls nothing but what pages name."""

import base64
import itertools
import json
import os
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.support.databases import find_program, part_is_missing

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-features=OptimizationHints,MediaRouter,Translate,IsolateOrigins,site-per-process",
    "--metrics-recording-only",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-pings",
    "--no-proxy-server",
    "--window-size=1280,900",
    "--remote-debugging-port=0",
)
_PATIENCE_S = 30.0
_PORT_FILE = "DevToolsActivePort"


def find_chromium() -> str:
    """Return the path of Chromium; without one the test skips, or fails where all parts must be there."""
    result = next(filter(None, map(find_program, _NAMES)), None)
    if result is None:
        part_is_missing("Chromium is not installed (apt-get install chromium).")
    return result


def find_readable_chromium() -> str:
    """Return the path of Chromium if `nobody`, as whom root starts it, may read the installation.

    Without it, or in a folder that only root reads, the test skips or fails as `find_chromium` does.
    """
    installed = sysconfig.get_path("purelib")
    if os.geteuid() == 0 and not all(folder.stat().st_mode & 1 for folder in Path(installed).parents):
        part_is_missing(f"{installed} is readable to root alone, and the browser runs as nobody.")
    return find_chromium()


class Page:
    """The one tab of a browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        #: Protocol events since the start, oldest first.
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=_PATIENCE_S))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]  # type: ignore[no-any-return]
            self.events.append(message)

    def visit(self, url: str) -> str | None:
        """Open an address as if it were typed; returns the error if none was loaded."""
        answer = self.call("Page.navigate", url=url)
        return answer.get("errorText")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str, *, seconds: float = _PATIENCE_S) -> Any:
        """Return the value of an expression once it is true."""
        until = time.monotonic() + seconds
        while True:
            try:
                if value := self.evaluate(expression):
                    return value
            except AssertionError:  # the page went away under it
                pass
            if time.monotonic() > until:
                raise TimeoutError(f"{expression}: {self.evaluate('document.body.innerText')[:2000]}")
            time.sleep(0.1)

    def screenshot(self, path: Path) -> None:
        """Write what the tab shows as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium(profile: Path, *flags: str) -> Iterator[Page]:
    """Run Chromium with a profile of its own while the block runs."""
    profile.mkdir(parents=True, exist_ok=True)
    # A profile that was used before still names the port of the browser before.
    (profile / _PORT_FILE).unlink(missing_ok=True)
    command = [find_chromium(), *_FLAGS, f"--user-data-dir={profile}", *flags, "about:blank"]
    environment = {**os.environ, "HOME": str(profile), "XDG_CONFIG_HOME": str(profile)}  # noqa: TID251
    with (profile / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        with connect(_find_tab(process, profile), max_size=None, proxy=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _find_tab(process: subprocess.Popen[bytes], profile: Path) -> str:
    """Return the DevTools address of the tab."""
    until = time.monotonic() + _PATIENCE_S
    port_file = profile / _PORT_FILE
    while time.monotonic() < until:
        assert process.poll() is None, (profile / "chromium.log").read_text()[-2000:]
        if port_file.exists() and (lines := port_file.read_text().splitlines()):
            tabs = httpx.get(f"http://127.0.0.1:{lines[0]}/json/list", trust_env=False).json()
            for tab in tabs:
                if tab["type"] == "page":
                    return str(tab["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise TimeoutError("Chromium did not open a tab.")
