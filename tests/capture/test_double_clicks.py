"""Double clicks: an element is recorded as clicked as often as it was, whatever its first click changes."""

from typing import Any

import pytest

from recorder import Client
from recorder.capture.capture_journal import CaptureJournal
from tests.capture.test_captured_actions import events_of, recording_of

COUNTER = """<div>Qty <b id=n>1</b> <button id=plus>+</button></div>
    <script>plus.onclick = () => { n.textContent = +n.textContent + 1 }</script>"""
MOVING = """<button id=plus>+</button>
    <script>plus.onclick = () => { plus.textContent += "+"; plus.style.paddingRight = "20px" }</script>"""
REPLACED = """<div id=list><button>+</button></div>
    <script>list.onclick = () => { list.innerHTML = "<button>+</button>" }</script>"""
ROUTED = """<button id=plus>+</button>
    <script>plus.onclick = () => history.pushState({}, "", "/next")</script>"""
FIELD = "<input id=plus>"


@pytest.mark.parametrize(
    ("html", "kinds"),
    [
        (COUNTER, ["dblclick"]),
        (MOVING, ["dblclick"]),
        (REPLACED, ["click", "click"]),
        (ROUTED, ["click", "click"]),
        (FIELD, ["dblclick"]),
    ],
    ids=("counter", "moving", "replaced", "routed", "field"),
)
def test_a_double_click_is_recorded_as_two_clicks_in_all(
    page: Any, client: Client, html: str, kinds: list[str]
) -> None:
    with recording_of(page, client, html) as recording:
        box = page.locator("button,input").bounding_box()
        page.mouse.dblclick(box["x"] + 5, box["y"] + 5)
    events = [event for event in events_of(client, recording) if event["type"] != "navigate"]
    assert [event["type"] for event in events] == kinds
    if html == COUNTER:
        assert events[0]["target"]["near"] == "Qty 1 +"


def test_clicks_with_other_modifiers_or_on_other_elements_are_no_double_click(
    page: Any, client: Client
) -> None:
    html = "<button id=one>One</button><button id=two>Two</button>"
    with recording_of(page, client, html) as recording:
        page.click("#one")
        page.click("#two", modifiers=["Control"])
        page.click("#one")
        page.keyboard.down("Shift")
        page.mouse.down(click_count=2)
        page.mouse.up(click_count=2)
        page.keyboard.up("Shift")
    events = events_of(client, recording)
    assert [(event["type"], event["input"].get("modifiers")) for event in events] == [
        ("click", None),
        ("click", 2),
        ("click", None),
        ("click", 8),
    ]


def test_only_the_last_step_of_the_same_page_becomes_a_double_click() -> None:
    stored: list[dict[str, Any]] = []
    journal = CaptureJournal(stored.append)
    app = {"name": "chromium", "page": "p1"}
    assert not journal.join_double_click(app)
    journal.add_step({"t_ms": 0, "type": "click", "app": app})
    assert not journal.join_double_click({**app, "page": "p2"})
    assert journal.join_double_click(app)
    assert not journal.join_double_click(app)
    journal.send_held_step()
    assert not journal.join_double_click(app)
    assert [event["type"] for event in stored] == ["dblclick"]
