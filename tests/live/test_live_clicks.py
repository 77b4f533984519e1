"""Clicks in live replays: with the recorded modifiers, and at the recorded point where it matters."""

from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tests.live.conftest import Recorded
from tests.live.test_live_states import serving
from tests.support.factories import event
from tests.support.live_replays import show, work_live
from tests.support.replay_requests import allow_hosts
from tests.support.sealing import seal_all

RECORDED = "http://list.example"
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
PAGE = f"""<!doctype html><title>List</title><h1>List</h1>
<button id=one>One</button><button id=two>Two</button>
<canvas id=map width=400 height=300 role=img aria-label=Map style="border: 5px solid"></canvas>
<p style="height: 3000px"></p>
<img id=plan usemap=#rooms alt=Plan width=200 height=100 src="{PIXEL}">
<map name=rooms><area id=hall shape=rect coords="0,0,20,20" href="#hall" alt=Hall></map>
<input id=seat type=image alt=Seat width=100 height=50 src="{PIXEL}">
<script>
let sent = 100;
for (const name of ["click", "dblclick"]) document.addEventListener(name, (event) => {{
  event.preventDefault();
  const names = ["ctrlKey", "shiftKey"].filter((name) => event[name]);
  const {{ id, clientLeft, clientTop }} = event.target;
  sent += 1;
  fetch("/" + [sent, name, id, ...names, ...(event.target.localName === "button" ? [] :
    [event.offsetX + clientLeft, event.offsetY + clientTop])].join("/"));
}});
</script>"""


def button(name: str) -> dict[str, Any]:
    """Return a button of the page as a target."""
    return {"role": "button", "name": name.title(), "tag": "button", "selectors": [f"#{name}"]}


def picture(name: str, tag: str, rect: list[int] | None, role: str = "img") -> dict[str, Any]:
    """Return an element with places as a target."""
    target = {"role": role, "name": name.title(), "tag": tag, "selectors": [f"#{name}"]}
    return target if rect is None else {**target, "rect": rect}


def replay_clicks(
    recorded: Recorded, *items: dict[str, Any], page: str = PAGE
) -> tuple[dict[str, Any], list[str]]:
    """Replay a recording with these events on a page; return the replay and the requests of the page."""
    caller = recorded.caller
    paths: list[str] = []

    class List(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode() if self.path == "/" else b"")

        def log_message(self, *_: object) -> None: ...

    session_id = caller.make_session(workflow="list")
    opening = event(0, "navigate", url=f"{RECORDED}/")
    assert caller.add_events(session_id, opening, *items).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    seal_all(caller.service.runtime)
    with serving(List) as port:
        allow_hosts(caller, f"localhost:{port}")
        policy = {
            "base_url_map": {RECORDED: f"http://localhost:{port}"},
            "repeat_consequential": True,
            "step_timeout_ms": 2_000,
        }
        body = {"session_id": session_id, "sandbox": "live", "policy": policy}
        replay_id = caller.post("/v1/replays", body).json()["id"]
        work_live(caller)
        return show(caller, replay_id), [path[4:] for path in sorted(paths) if "click" in path]


def click(t_ms: int, target: dict[str, Any], kind: str = "click", **given: Any) -> dict[str, Any]:
    """Return a click of the recording."""
    return event(t_ms, kind, target=target, url=f"{RECORDED}/", input={"button": 0, **given})


def test_clicks_have_the_recorded_modifiers_and_places(recorded: Recorded) -> None:
    canvas = picture("map", "canvas", [8, 100, 410, 310])
    shown, paths = replay_clicks(
        recorded,
        click(100, button("one")),
        click(200, button("two"), modifiers=2),
        click(300, button("two"), "dblclick", modifiers=10),
        click(400, canvas, point=[18, 110]),
        click(500, canvas, modifiers=8, point=[418, 410]),
        # Recorded on a display of two pixels for each of CSS.
        click(600, picture("map", "canvas", [16, 200, 820, 620]), point=[36, 240]),
        click(700, picture("plan", "img", [0, 50, 200, 100]), point=[150, 125]),
        click(800, picture("seat", "input", [0, 50, 100, 50], "button"), point=[7, 59]),
    )
    assert shown["status"] == "completed", shown
    assert paths == [
        "/click/one",
        "/click/two/ctrlKey",
        "/click/two/ctrlKey/shiftKey",
        "/click/two/ctrlKey/shiftKey",
        "/dblclick/two/ctrlKey/shiftKey",
        "/click/map/10/10",
        "/click/map/shiftKey/409/309",
        "/click/map/10/20",
        "/click/plan/150/75",
        "/click/seat/7/9",
    ]


@pytest.mark.parametrize(
    ("target", "given"),
    [
        (picture("map", "canvas", [8, 100, 410, 310]), {}),
        (picture("map", "canvas", None), {"point": [18, 110]}),
        (picture("map", "canvas", [8, 100, 410, 310]), {"point": [500, 110]}),
        (picture("plan", "img", None), {"point": [18, 110]}),
        (picture("seat", "input", [0, 50, 100, 50], "button"), {}),
    ],
    ids=("no point", "no rect", "outside", "plan", "seat"),
)
def test_a_click_without_the_place_that_it_needs_is_not_sent(
    recorded: Recorded, target: dict[str, Any], given: dict[str, Any]
) -> None:
    shown, paths = replay_clicks(recorded, click(100, target, **given))
    divergence = shown["divergence"]
    assert (shown["status"], divergence["step"], divergence["acted"]) == ("diverged", 2, False), shown
    assert divergence["kind"] == "action_failed"
    assert paths == []


AREAS = f"""<!doctype html><title>Rooms</title><h1>Rooms</h1><p style="height: 2000px"></p>
<div style="position: relative; width: 332px">
<img usemap=#rooms alt=Plan width=300 height=200 style="border: 7px solid; padding: 9px" src="{PIXEL}">
<b style="position: absolute; right: 0; bottom: 0; width: 110px; height: 110px; background: white"></b></div>
<map name=rooms><area id=ring shape=poly alt=Ring href="#ring"
    coords="0,0,100,0,100,100,0,100,0,90,90,90,90,10,0,10">
<area id=hall shape=circle coords="200,100,30" href="#hall" alt=Hall>
<area id=shed shape=rect coords="250,150,290,190" href="#shed" alt=Shed></map>
<script>let sent = 100; addEventListener("click", (event) => {{
  event.preventDefault();
  fetch("/" + [sent += 1, "click", event.target.id].join("/"));
}});</script>"""


def area(name: str) -> dict[str, Any]:
    """Return an area of the image map as a target, as a browser measures it."""
    return {**picture(name, "area", [0, 0, 0, 0], "link"), "selectors": [f"#{name}"]}


def test_areas_of_an_image_are_clicked_where_the_image_shows_them(recorded: Recorded) -> None:
    shown, paths = replay_clicks(
        recorded, click(100, area("ring")), click(200, area("hall")), click(300, area("shed")), page=AREAS
    )
    assert (shown["status"], shown["divergence"]["step"]) == ("diverged", 4), shown
    # Something else is where the last area would be.
    assert (shown["divergence"]["kind"], shown["divergence"]["acted"]) == ("action_failed", False)
    assert paths == ["/click/ring", "/click/hall"]
