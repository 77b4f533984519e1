"""Sites of a few pages, and live replays of events that are written by hand, for tests."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.factories import Caller
from tests.support.live_replays import show, work_live
from tests.support.replay_requests import allow_hosts
from tests.support.sealing import seal_all


@contextmanager
def serving_pages(pages: Mapping[str, str]) -> Iterator[tuple[int, list[str]]]:
    """Yield a server of HTML pages by their path; its port, and the paths of its requests."""
    paths: list[str] = []

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = pages.get(self.path.partition("?")[0])
            if self.path != "/favicon.ico":
                paths.append(self.path)
            self.send_response(204 if text is None else 200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port, paths
        finally:
            server.shutdown()
            thread.join()


def make_button(name: str) -> dict[str, Any]:
    """Return a button as a target, whose id is its name."""
    return {"role": "button", "name": name, "tag": "button", "selectors": [f"#{name}", f"aria/{name}"]}


def make_field(name: str) -> dict[str, Any]:
    """Return a field of text as a target, whose id is its name."""
    return {"role": "textbox", "name": name, "tag": "input", "selectors": [f"#{name}", f"aria/{name}"]}


def store_events(caller: Caller, *items: dict[str, Any]) -> str:
    """Store and seal a session of events; return its id."""
    session_id = caller.make_session(workflow="small")
    assert caller.add_events(session_id, *items).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    return session_id


def replay_on_ports(
    caller: Caller, session_id: str, recorded: str, *ports: int, inputs: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Replay a session live on local servers, the first in place of the recorded site; return its end."""
    replay_id = ask_on_ports(caller, session_id, recorded, *ports, inputs=dict(inputs or {}))
    work_live(caller)
    return show(caller, replay_id)


def ask_on_ports(
    caller: Caller,
    session_id: str,
    recorded: str,
    *ports: int,
    policy: Mapping[str, Any] | None = None,
    **members: Any,
) -> str:
    """Ask for a live replay on local servers, the first in place of the recorded site; return its id."""
    allow_hosts(caller, *(f"localhost:{port}" for port in ports))
    whole = {
        "base_url_map": {recorded: f"http://localhost:{ports[0]}"},
        "repeat_consequential": True,
        "step_timeout_ms": 4_000,
        **(policy or {}),
    }
    body = {"session_id": session_id, "sandbox": "live", "policy": whole, **members}
    answer = caller.post("/v1/replays", body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])
