"""Popups in live replays: those of the recording are acted on, and others get nothing. Spec §4.6."""

import io
from typing import Any

from PIL import Image

from recorder import Client
from recorder.capture import record
from tests.live.conftest import Recorded
from tests.support.captured_pages import running_browser
from tests.support.factories import event
from tests.support.http_service import serving
from tests.support.sealing import seal_all
from tests.support.small_sites import make_button, make_field, replay_on_ports, serving_pages, store_events

RECORDED = "http://shop.example"
URL, POPUP_URL = f"{RECORDED}/", f"{RECORDED}/popup"
PAGES = {
    "/": """<!doctype html><title>Shop</title><h1>Shop</h1>
<button id=Open onclick="window.open('/popup')">Open</button>
<button id=Save onclick="fetch('/saved-on-opener')">Save</button>""",
    "/popup": """<!doctype html><title>Popup</title><h1>Popup</h1>
<input id=Name aria-label=Name><input id=City aria-label=City>
<button id=Save onclick="fetch('/saved?' + Name.value + City.value)">Save</button>
<button id=Close onclick="window.close()">Close</button>""",
}


def click(t_ms: int, name: str, url: str, **members: Any) -> dict[str, Any]:
    """Return a click on a button."""
    return event(t_ms, "click", target=make_button(name), url=url, **members)


def fill(t_ms: int, name: str, url: str, **given: Any) -> dict[str, Any]:
    """Return a text that is typed into a field."""
    return event(t_ms, "fill", target=make_field(name), url=url, input=given)


def test_steps_act_in_an_announced_popup_until_it_closes(recorded: Recorded) -> None:
    opens = [{"type": "popup", "page": "p2", "url": POPUP_URL}]
    session_id = store_events(
        recorded.caller,
        event(0, "navigate", url=URL),
        click(100, "Open", URL, signals=opens),
        event(101, "tab_open", url=POPUP_URL),
        fill(200, "Name", POPUP_URL, value="Ada"),
        fill(300, "City", POPUP_URL, value="Rome"),
        click(400, "Save", POPUP_URL),
        click(500, "Close", POPUP_URL),
        click(600, "Save", URL),
    )
    with serving_pages(PAGES) as (port, paths):
        shown = replay_on_ports(recorded.caller, session_id, RECORDED, port)
    assert shown["status"] == "completed", shown
    assert paths == ["/", "/popup", "/saved?AdaRome", "/saved-on-opener"]
    listed = recorded.caller.get(f"/v1/sessions/{shown['result_session_id']}/events").json()["data"]
    (signal,) = listed[1]["signals"]
    assert (signal["type"], signal["url"]) == ("popup", f"http://localhost:{port}/popup")
    assert "tab_open" in [item["type"] for item in listed]


def test_a_captured_popup_is_replayed(recorded: Recorded) -> None:
    caller = recorded.caller
    with serving_pages(PAGES) as (port, paths):
        with (
            serving(caller.service.app, lifespan="off") as api_port,
            Client(f"http://127.0.0.1:{api_port}", caller.key.key) as client,
            running_browser() as browser,
        ):
            page = browser.new_page()
            with record(page, workflow="popup", client=client) as recording:
                page.goto(f"http://localhost:{port}/")
                with page.expect_popup() as opened:
                    page.click("#Open")
                popup = opened.value
                popup.fill("#Name", "Ada")
                popup.fill("#City", "Rome")
                with popup.expect_response("**/saved*"):
                    popup.click("#Save")
        seal_all(caller.service.runtime)
        captured = list(paths)
        paths.clear()
        shown = replay_on_ports(caller, recording.id, f"http://localhost:{port}", port)
    assert shown["status"] == "completed", shown
    assert paths == captured == ["/", "/popup", "/saved?AdaRome"]


def test_a_popup_that_nobody_verified_is_neither_pressed_nor_pictured(recorded: Recorded) -> None:
    caller = recorded.caller
    pages = {
        "/": """<!doctype html><title>Shop</title><h1 id=Shop>Shop</h1><input id=Code aria-label=Code>
<button id=Send disabled onclick="fetch('/sent')">Send</button>
<script>Code.oninput = () => {
  setTimeout(() => window.open("/show?v=" + Code.value), 900);
  setTimeout(() => { Send.disabled = false; }, 2000);
};
Send.onpointerdown = () => fetch("/pressed");
</script>""",
        "/show": """<!doctype html><title>Show</title><style>html { background: #f00; height: 100% }</style>
<script>addEventListener("pointerdown", () => fetch("/pressed-popup"))</script>""",
    }
    heading = {"tag": "h1", "role": "heading", "name": "Shop", "text": "Shop", "selectors": ["#Shop", "h1"]}
    session_id = store_events(
        caller,
        event(0, "navigate", url=URL),
        fill(200, "Code", URL, value=None, masked=True, secret_ref="code"),
        event(300, "drag", target=make_button("Send"), url=URL, data={"drop": heading}),
        event(400, "press", url=URL, input={"key": "Escape"}),
    )
    with serving_pages(pages) as (port, paths):
        shown = replay_on_ports(caller, session_id, RECORDED, port, inputs={"code": "sesame-1234"})
    assert shown["status"] == "completed", shown
    assert "/show?v=sesame-1234" in paths and "/pressed" in paths and "/pressed-popup" not in paths
    path = f"/v1/sessions/{shown['result_session_id']}/frames"
    frames = caller.get(path).json()["data"]
    assert frames
    for frame in frames:
        with Image.open(io.BytesIO(caller.get(f"{path}/{frame['id']}/image").content)) as picture:
            corner = picture.convert("L").getpixel((picture.width - 5, picture.height - 5))
        assert corner > 200, frame  # red is darker
