"""Drags in live replays: source and drop target are verified before the pointer is pressed. Spec §4.6."""

from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.live.conftest import Recorded
from tests.live.test_live_states import serving
from tests.support.factories import event
from tests.support.live_replays import show, work_live
from tests.support.replay_requests import allow_hosts
from tests.support.sealing import seal_all

RECORDED = "http://board.example"
PAGE = """<!doctype html><title>Board</title>
<style>div { width: 90px; height: 40px; user-select: none }</style>
<div id=card draggable=true>Invoice 7</div><div id=done>DROP</div><div id=knob>Knob</div><div id=bin>Bin</div>
<p style="height: 3000px"></p><div id=far>Far</div>
<script>
const [card, done, knob, bin, far] =
  ["card", "done", "knob", "bin", "far"].map((id) => document.getElementById(id));
const add = (name) => document.body.insertAdjacentHTML("beforeend", `<button id=${name}>${name}</button>`);
card.ondragstart = () => fetch("/began");
done.ondragover = (event) => event.preventDefault();
done.ondrop = () => add("Moved");
far.ondragover = (event) => event.preventDefault();
far.ondrop = () => add("Scrolled");
knob.onpointerdown = (event) => {
  knob.setPointerCapture(event.pointerId);
  knob.onpointermove = (move) => { knob.style.transform = `translateY(${move.clientY - event.clientY}px)`; };
  knob.onpointerup = (up) => {
    knob.style.transform = "";
    knob.onpointermove = null;
    if (document.elementsFromPoint(up.clientX, up.clientY).includes(bin)) add("Binned");
  };
};
</script>"""


def part(name: str, text: str) -> dict[str, Any]:
    """Return an element of the page as a target."""
    return {"tag": "div", "text": text, "attrs": {"id": name}, "selectors": [f"#{name}", f"text/{text}"]}


def button(name: str) -> dict[str, Any]:
    """Return a button that the page makes once a drag has ended."""
    return {"role": "button", "name": name, "selectors": [f"#{name}", f"aria/{name}"]}


def test_a_drag_ends_on_the_verified_element_or_does_not_begin(recorded: Recorded) -> None:
    caller = recorded.caller
    paths: list[str] = []
    label = ["Done"]

    class Board(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE.replace("DROP", label[0]).encode())

        def log_message(self, *_: object) -> None: ...

    url = f"{RECORDED}/"
    done, bin, far = ({"drop": part(text.lower(), text)} for text in ("Done", "Bin", "Far"))
    session_id = caller.make_session(workflow="board")
    items = (
        event(0, "navigate", url=url),
        event(100, "drag", target=part("card", "Invoice 7"), url=url, data=done),
        event(200, "click", target=button("Moved"), url=url),
        event(300, "drag", target=part("knob", "Knob"), url=url, data=bin),
        event(400, "click", target=button("Binned"), url=url),
        # The page never shows both elements at once.
        event(500, "drag", target=part("card", "Invoice 7"), url=url, data=far),
        event(600, "click", target=button("Scrolled"), url=url),
    )
    assert caller.add_events(session_id, *items).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    with serving(Board) as port:
        allow_hosts(caller, f"localhost:{port}")
        policy = {"base_url_map": {RECORDED: f"http://localhost:{port}"}, "repeat_consequential": True}
        body = {"session_id": session_id, "sandbox": "live", "policy": policy}
        shown = {}
        for label[0] in ("Done", "Archive"):
            replay_id = caller.post("/v1/replays", body).json()["id"]
            work_live(caller)
            shown[label[0]] = show(caller, replay_id)
    moved, refused = shown["Done"], shown["Archive"]
    assert moved["status"] == "completed", moved
    recorded_events = caller.get(f"/v1/sessions/{moved['result_session_id']}/events").json()["data"]
    drops = [item["data"]["drop"]["attrs"]["id"] for item in recorded_events if item["type"] == "drag"]
    assert drops == ["done", "bin", "far"]
    divergence = refused["divergence"]
    assert (divergence["step"], divergence["acted"]) == (2, False), refused
    assert divergence["kind"] in ("target_missing", "target_changed")
    assert paths.count("/began") == 2
