"""Recordings of live replays, and inputs that a page echoes or asks for elsewhere. Spec §4.6, contract §8."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote_plus, urlsplit

import pytest
from PIL import Image

from tests.live.conftest import Recorded
from tests.support.databases import create_file
from tests.support.dom_snapshots import snapshot
from tests.support.factories import Caller, event, frame
from tests.support.live_replays import read_row, running_live_app, show, work_live
from tests.support.replay_requests import allow_hosts
from tests.support.sealing import seal_all

RECORDED = "http://shop.example"
SECRET = "Quill & Söhne 42"
FORM = """<h1>Search</h1><form action="/found"><label>Customer <input id="customer" name="q"></label>
<button>Find</button></form>"""
#: The value in a text of several nodes, in an address, in the title, in a field and in a drawing.
FOUND = """<title>Orders of {text}</title><h1>Orders of {text}</h1><p>For <b>{first}</b>{rest}: none.</p>
<a href="/found?q={quoted}">Again</a> <input value="{text}" aria-label="Name">
<svg width="90" height="20"><text y="15">{text}</text></svg> <button>Clear {text}</button>"""
PAINT = (60, 60, 60)


class _Shop(BaseHTTPRequestHandler):
    """A shop that echoes; `/away` leads to the same form on another allowed host."""

    searches: list[str]

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/away":
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/form")  # type: ignore[attr-defined]
            self.end_headers()
            return
        query = parse_qs(address.query).get("q", [""])[0]
        if query:
            self.searches.append(query)
        text = query.replace("&", "&amp;")
        parts = {"text": text, "first": text[:4], "rest": text[4:], "quoted": quote_plus(query)}
        body = f"<!doctype html><meta charset=utf-8>{FOUND.format(**parts) if query else FORM}".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def running_shop() -> Iterator[tuple[int, list[str]]]:
    """Yield the shop: its port, and the queries that it was asked."""
    queries: list[str] = []

    class Shop(_Shop):
        searches = queries

    with ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port, queries
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Yield a recording in the shop: a masked customer, and a button that the shop no longer has."""
    folder = tmp_path_factory.mktemp("shop")
    with running_live_app(folder, create_file(folder)) as (service, _):
        caller = service.make_caller(scope="admin replay:live")
        yield Recorded(caller, _record_search(caller, f"{RECORDED}/form"))


def _record_search(caller: Caller, first_url: str) -> str:
    session_id = caller.make_session(workflow="search")
    field = {"role": "textbox", "name": "Customer", "selectors": ["#customer", "aria/Customer"]}
    masked = {"value": None, "masked": True, "secret_ref": "customer"}
    find = {"role": "button", "name": "Find", "selectors": ["aria/Find", "text/Find"]}
    more = {"role": "button", "name": "More", "selectors": ["aria/More"]}
    signals = [{"type": "navigation", "url": f"{RECORDED}/found?q=•••"}]
    items = (
        event(0, "navigate", url=first_url),
        event(100, "fill", target=field, input=masked, url=f"{RECORDED}/form"),
        event(200, "click", target=find, url=f"{RECORDED}/form", signals=signals),
        event(300, "click", target=more, url=f"{RECORDED}/found?q=•••"),
    )
    assert caller.add_events(session_id, *items).status_code == 202
    result_page = ["html", {}, ["body", {}, ["h1", {}, "Orders of ‹name›"], ["button", {}, "Clear"]]]
    assert caller.add_frames(session_id, frame(250, dom=snapshot(result_page))).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    return session_id


def _replay(shop: Recorded, session_id: str, port: int, **policy: Any) -> str:
    allow_hosts(shop.caller, f"localhost:{port}", f"127.0.0.1:{port}")
    sent = {"base_url_map": {RECORDED: f"http://localhost:{port}"}, "step_timeout_ms": 2_500, **policy}
    body = {
        "session_id": session_id,
        "sandbox": "live",
        "policy": {"thresholds": {"ok": 0, "diverged": 0}, **sent},
        "inputs": {"customer": SECRET},
    }
    answer = shop.caller.post("/v1/replays", body)
    assert answer.status_code == 202, answer.text
    work_live(shop.caller)
    return str(answer.json()["id"])


def read_all(caller: Caller, session_id: str) -> dict[str, Any]:
    """Return everything that the service shows of a session, with its pictures."""
    path = f"/v1/sessions/{session_id}"
    frames = caller.get(f"{path}/frames").json()["data"]
    return {
        "session": caller.get(path).json(),
        "events": caller.get(f"{path}/events").json()["data"],
        "frames": frames,
        "doms": [caller.get(f"{path}/frames/{row['id']}/dom").json() for row in frames],
        "images": [caller.get(f"{path}/frames/{row['id']}/image").content for row in frames],
    }


def test_a_run_that_diverges_is_recorded_without_the_input_that_its_page_echoes(shop: Recorded) -> None:
    caller = shop.caller
    before = caller.get("/v1/quota").json()
    with running_shop() as (port, queries):
        replay_id = _replay(shop, shop.session_id, port)
    shown = show(caller, replay_id)
    assert queries == [SECRET], json.dumps(shown)
    assert (shown["status"], shown["divergence"]["kind"]) == ("diverged", "target_missing"), shown
    run = read_all(caller, shown["result_session_id"])
    session, events = run["session"], run["events"]
    assert (session["status"], session["origin"], session["outcome"]) == ("stopped", "replay", "error")
    assert session["actor"] == {"id": replay_id, "kind": "script"}
    assert session["metadata"] == {"replay_id": replay_id, "session_id": shop.session_id}
    assert [item["type"] for item in events] == ["navigate", "fill", "click", "navigate", "custom", "error"]
    assert events[1]["input"] == {"value": None, "masked": True, "secret_ref": "customer"}
    assert events[2]["signals"] == [{"type": "navigation", "url": f"http://localhost:{port}/found?q=•••"}]
    assert [item["data"]["outcome"] for item in events if "step" in item.get("data", {})] == [
        "matched", "matched", "matched", "diverged",
    ]  # fmt: skip
    assert [row["id"] for row in run["frames"]][-1] == shown["divergence"]["live_frame_id"]
    assert {item["frame_id"] for item in events if "frame_id" in item} < {row["id"] for row in run["frames"]}
    # Nothing of the input: in no answer, whatever its form, and in no file of the deployment.
    texts = json.dumps([run | {"images": []}, shown], ensure_ascii=False)
    assert "Söhne" not in texts and quote_plus("Söhne") not in texts and "Quill" not in texts
    assert "Orders of •••" in texts and "/found?q=•••" in texts
    data = caller.service.runtime.settings.data_dir
    for path in filter(Path.is_file, data.rglob("*")):
        content = path.read_bytes()
        assert "Söhne".encode() not in content and quote_plus("Söhne").encode() not in content, path
    # In the pictures the field, the texts and the drawing are painted over.
    assert len(run["frames"][-1]["masked_rects"]) >= 6
    for row, image in zip(run["frames"], run["images"], strict=True):
        with Image.open(io.BytesIO(image)) as picture:
            for left, top, width, height in row["masked_rects"] or ():
                pixel: Any = picture.getpixel((left + width // 2, top + height // 2))
                assert all(abs(part - wanted) < 12 for part, wanted in zip(pixel, PAINT, strict=True)), row
    assert run["frames"][1]["masked_rects"], "the field after it was filled"
    # It is sealed, and counts neither in the quota nor in the graph.
    seal_all(caller.service.runtime)
    after = caller.get(f"/v1/sessions/{session['id']}").json()
    assert (after["status"], after["path_id"]) == ("sealed", None)
    assert caller.get("/v1/quota").json() == before
    newest, *others = (item["id"] for item in caller.get("/v1/sessions?workflow=search").json()["data"])
    assert newest == session["id"] and shop.session_id in others


def test_an_input_is_typed_on_the_recorded_site_alone(shop: Recorded) -> None:
    session_id = _record_search(shop.caller, f"{RECORDED}/away")
    with running_shop() as (port, queries):
        replay_id = _replay(shop, session_id, port)
        shown = show(shop.caller, replay_id)
        divergence = shown["divergence"]
        assert (shown["status"], divergence["kind"]) == ("diverged", "unexpected_navigation"), shown
        assert not divergence["acted"] and divergence["observed"]["url"] == f"http://127.0.0.1:{port}/form"
        run = read_all(shop.caller, shown["result_session_id"])
        assert [item["type"] for item in run["events"]] == ["navigate", "custom", "error"]
        assert '"__v": "•••"' not in json.dumps(run["doms"], ensure_ascii=False)
        # Where the policy maps the recorded site to that one, it is the recorded one.
        mapped = {"base_url_map": {RECORDED: f"http://127.0.0.1:{port}"}}
        assert show(shop.caller, _replay(shop, session_id, port, **mapped))["divergence"]["step"] == 4
    assert queries == [SECRET]
    assert read_row(shop.caller, replay_id).input_values is None
