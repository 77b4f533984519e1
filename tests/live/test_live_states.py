"""Live replays that begin with the stored state of a browser. Spec §4.6, contract §8."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from examples.webapp.server import WebApp, run_webapp
from tests.live.conftest import Recorded
from tests.live.test_live_recording import read_all
from tests.support.factories import event
from tests.support.live_replays import ask_live, read_row, show, work_live
from tests.support.replay_requests import allow_hosts
from tests.support.sealing import seal_all

RECORDED = "http://account.example"
SESSION = "c0ffee00c0ffee00"
TOKEN = "eyJ0b2tlbiI6ImJsdWUtd2hhbGUifQ"
STORED = "1ndexed-database-t0ken"
PAGE = f"""<!doctype html><title>Account</title><h1>Account</h1><p>Session {SESSION}, token <b id=t></b>.</p>
<a href="/orders?sid={SESSION}">Orders</a>
<script>t.textContent = JSON.parse(localStorage.login).token
const opening = indexedDB.open("login", 1);
opening.onupgradeneeded = () => opening.transaction.abort();
opening.onsuccess = () => {{ const read = opening.result.transaction("keys").objectStore("keys").get("main");
  read.onsuccess = () => {{
    t.after(read.result.token);
    document.body.insertAdjacentHTML("beforeend", "<button id=stored>Stored</button>");
  }};
}};</script>"""


def make_cookie(value: str, domain: str = "localhost", **members: Any) -> dict[str, Any]:
    """Return a cookie as Playwright stores it."""
    fixed = {"path": "/", "expires": -1, "httpOnly": True, "secure": False, "sameSite": "Lax"}
    return {"name": "session", "value": value, "domain": domain, **fixed, **members}


@contextmanager
def running_account() -> Iterator[tuple[int, list[tuple[str, str | None]]]]:
    """Yield a server with pages of a session and a token: its port, and the paths and cookies that it got."""
    requests: list[tuple[str, str | None]] = []

    class Account(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.path, self.headers.get("Cookie")))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_: object) -> None: ...

    with serving(Account) as port:
        yield port, requests


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Yield the port of a server of pages."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_an_upload_sends_the_file_of_an_input(recorded: Recorded) -> None:
    caller = recorded.caller
    bodies: list[bytes] = []
    page = b"""<title>Bill</title><form method=post enctype=multipart/form-data><input type=file id=bill
aria-label=Bill name=bill><input type=file id=more aria-label=More name=more multiple>
<button id=send>Send</button></form>"""

    class Bills(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    bill = {"tag": "input", "name": "Bill", "attrs": {"type": "file"}, "selectors": ["#bill", "aria/Bill"]}
    more = {**bill, "name": "More", "selectors": ["#more", "aria/More"]}
    send = {"role": "button", "name": "Send", "selectors": ["#send", "text/Send"]}
    signals = [{"type": "navigation", "url": f"{RECORDED}/", "method": "POST"}]
    session_id = caller.make_session(workflow="bill")
    items = (
        event(0, "navigate", url=f"{RECORDED}/"),
        event(100, "upload", target=bill, url=f"{RECORDED}/", input={"files": ["bill.csv"]}),
        event(150, "upload", target=more, url=f"{RECORDED}/", input={"files": ["a.txt", "b.txt"]}),
        event(200, "click", target=send, url=f"{RECORDED}/", signals=signals),
    )
    assert caller.add_events(session_id, *items).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    listed = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    upload_id, more_id = listed[1]["id"], listed[2]["id"]
    with serving(Bills) as port:
        allow_hosts(caller, f"localhost:{port}")
        ends = []
        for value in (None, "data:no file", "data:text/csv;base64,YSxi"):
            policy = {"base_url_map": {RECORDED: f"http://localhost:{port}"}, "repeat_consequential": True}
            inputs = {} if value is None else {upload_id: value, more_id: '["data:,first", "last"]'}
            body = {"session_id": session_id, "sandbox": "live", "policy": policy, "inputs": inputs}
            replay_id = caller.post("/v1/replays", body).json()["id"]
            work_live(caller)
            shown = show(caller, replay_id)
            ends.append(shown["error"] and shown["error"]["type"])
        assert ends == ["input_missing", "input_missing", None]
    assert shown["status"] == "completed", shown
    (sent,) = filter(None, bodies)
    assert b'filename="bill.csv"\r\nContent-Type: text/csv\r\n\r\na,b\r\n' in sent
    assert b'filename="a.txt"' in sent and b'filename="b.txt"' in sent and b"\r\n\r\nlast\r\n" in sent
    events = caller.get(f"/v1/sessions/{shown['result_session_id']}/events").json()["data"]
    assert events[1]["input"] == {
        "value": None, "masked": True, "secret_ref": upload_id, "files": ["bill.csv"],
    }  # fmt: skip


def calls_of(app: WebApp) -> list[str]:
    """Return the paths of the requests that the application got."""
    return [call["path"] for call in app.calls]


def test_a_replay_that_begins_signed_in_needs_no_steps_for_it(recorded: Recorded) -> None:
    with run_webapp("base") as app:
        app.sessions.add(SESSION)
        replay_id = ask_live(
            recorded.caller,
            recorded.session_id,
            app,
            mode="partial",
            anchor={"tag": "ready_to_approve"},
            policy={"storage_state_ref": "state"},
            inputs={"state": json.dumps({"cookies": [make_cookie(SESSION)]}), "password": "unused"},
        )
        work_live(recorded.caller)
        shown = show(recorded.caller, replay_id)
        assert calls_of(app) == ["/invoices/1042/approve"], shown
    assert shown["status"] == "completed", shown


def test_a_state_reaches_the_page_and_nothing_that_is_kept(recorded: Recorded) -> None:
    caller = recorded.caller
    session_id = caller.make_session(workflow="account")
    stored = {"role": "button", "name": "Stored", "selectors": ["#stored", "aria/Stored"]}
    items = (
        event(0, "navigate", url=f"{RECORDED}/"),
        event(50, "click", target=stored, url=f"{RECORDED}/"),  # there once the page has read its database
        event(100, "navigate", url=f"{RECORDED}/orders"),
    )
    assert caller.add_events(session_id, *items).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    with running_account() as (port, requests):
        allow_hosts(caller, f"localhost:{port}")
        item = {"name": "login", "value": json.dumps({"token": TOKEN})}
        store = {
            "name": "keys", "autoIncrement": False, "indexes": [],
            "records": [{"key": "main", "value": {"token": STORED}}],
        }  # fmt: skip
        database = {"name": "login", "version": 1, "stores": [store]}
        origins = [f"http://localhost:{port}", f"http://127.0.0.1:{port}"]
        state = {
            "cookies": [make_cookie(SESSION), make_cookie("other-other", "127.0.0.1")],
            "origins": [
                {"origin": origin, "localStorage": [item], "indexedDB": [database]} for origin in origins
            ],
        }
        policy = {"base_url_map": {RECORDED: f"http://localhost:{port}"}, "storage_state_ref": "state"}
        body = {"session_id": session_id, "sandbox": "live", "policy": policy}
        replay_id = caller.post("/v1/replays", {**body, "inputs": {"state": json.dumps(state)}}).json()["id"]
        work_live(caller)
        shown = show(caller, replay_id)
        assert shown["status"] == "completed", shown
        pages = [request for request in requests if request[0] != "/favicon.ico"]
        assert pages == [("/", f"session={SESSION}"), ("/orders", f"session={SESSION}")]
        kept = json.dumps([read_all(caller, shown["result_session_id"]) | {"images": []}, shown])
        assert not any(text in kept for text in (SESSION, TOKEN, STORED)) and "Account" in kept
        for path in filter(Path.is_file, caller.service.runtime.settings.data_dir.rglob("*")):
            content = path.read_bytes()
            assert SESSION.encode() not in content and TOKEN.encode() not in content, path
        assert read_row(caller, replay_id).input_values is None
        # Without the input that it names, and with a cookie that Chromium refuses, no page is opened.
        requests.clear()
        refused = {"cookies": [make_cookie(SESSION, name="__Host-session")]}
        for inputs, word in (({}, "inputs state"), ({"state": json.dumps(refused)}, "does not take")):
            replay_id = caller.post("/v1/replays", {**body, "inputs": inputs}).json()["id"]
            work_live(caller)
            error = show(caller, replay_id)["error"]
            assert error["type"] == "input_missing" and word in error["message"], error
            assert SESSION not in error["message"]
        assert requests == []
