"""Every operation of the interface has a method of the client."""

import inspect
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest

from api.app import create_app
from recorder.client import CapturedFrame, Client
from tests.support.sealed_sessions import make_settings

#: Operations for probes and people, and files, whose signed addresses the manifest holds.
NOT_CALLED = {"read_start_page", "healthz", "readyz", "read_metrics", "get_file"}
#: One answer that every method can read.
ANSWER = {
    "id": "made",
    "status": "completed",
    "data": [],
    "has_more": False,
    "next_cursor": None,
    "accepted": 1,
    "awaiting": None,
    "results": [],
}
ARGUMENTS: dict[str, Any] = {
    "events": [{"t_ms": 0, "type": "click"}],
    "frames": [CapturedFrame.of(b"\x89PNG\r\n\x1a\n", t_ms=0)],
    "session_ids": ["ses_1"],
    "step": 1,
}


class Called:
    """The requests that a server of its own received, as method and path."""

    def __init__(self) -> None:
        self.calls: set[tuple[str, str]] = set()
        called = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                called.calls.add((self.command, self.path.partition("?")[0]))
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                is_stream = self.path.partition("?")[0].endswith("/stream")
                body = b"" if is_stream else orjson.dumps(ANSWER)
                self.send_response(404 if is_stream else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_DELETE = answer

            def log_message(self, format: str, *values: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def called() -> Iterator[Called]:
    """Yield a server that answers every request and keeps it."""
    called = Called()
    thread = threading.Thread(target=called.server.serve_forever)
    thread.start()
    yield called
    called.server.shutdown()
    thread.join()
    called.server.server_close()


def test_every_operation_is_reachable(called: Called, tmp_path: Any) -> None:
    with Client(f"http://127.0.0.1:{called.server.server_port}", "nsk_test_key", patience_s=0.1) as client:
        for name, method in inspect.getmembers(client, inspect.ismethod):
            if not name.startswith(("_", "wait_", "close")):
                call(method)
    document = create_app(make_settings(tmp_path)).openapi()
    missing = {
        operation["operationId"]
        for path, methods in document["paths"].items()
        for verb, operation in methods.items()
        if not any(is_at(path, verb, made) for made in called.calls)
    }
    assert {name for name in missing if not name.startswith(tuple(NOT_CALLED))} == set()


def call(method: Any) -> None:
    """Call a method with one value for each required argument, and read what it yields."""
    required = [
        parameter
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    values = {parameter.name: ARGUMENTS.get(parameter.name, "made") for parameter in required}
    try:
        answer = method(**values)
        if inspect.isgenerator(answer):
            list(answer)
    except Exception:  # the server's answer is none that the method expects; it was called all the same
        return


def is_at(path: str, verb: str, made: tuple[str, str]) -> bool:
    """Return whether a request is one to this address."""
    pattern = re.sub(r"\\\{[^}]+\\\}", "[^/]+", re.escape(path))
    return made[0] == verb.upper() and re.fullmatch(pattern, made[1]) is not None
