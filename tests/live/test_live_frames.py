"""Actions in frames of the page's own site in live replays. Spec §4.6."""

from typing import Any

import pytest

from tests.live.conftest import Recorded
from tests.support.factories import event
from tests.support.small_sites import make_button, make_field, replay_on_ports, serving_pages, store_events

RECORDED = "http://shop.example"
SHOP = "<!doctype html><title>Shop</title><h1>Shop</h1>"
FORM = """<!doctype html><p style="height: 900px">Below is a form.</p>
<input id=Name aria-label=Name onchange="fetch('/name/' + value)">
<button id=Send onclick="fetch('/sent')">Send</button>"""
LATE = f"{SHOP}<iframe></iframe><script>setTimeout(() => frames[0].location = '/form', 700)</script>"


@pytest.mark.parametrize(
    "pages",
    [
        {"/": f"{SHOP}<iframe src=/form></iframe>"},
        {"/": f"{SHOP}<iframe src=/outer></iframe>", "/outer": "<p>Outer</p><iframe src=/form></iframe>"},
        {"/": LATE},
    ],
    ids=("frame", "frame in a frame", "frame that gets another document"),
)
def test_steps_act_on_elements_of_frames(recorded: Recorded, pages: dict[str, str]) -> None:
    def act(t_ms: int, kind: str, target: dict[str, Any], **given: Any) -> dict[str, Any]:
        return event(t_ms, kind, target={**target, "frame_path": [0]}, url=f"{RECORDED}/", input=given)

    session_id = store_events(
        recorded.caller,
        event(0, "navigate", url=f"{RECORDED}/"),
        act(100, "fill", make_field("Name"), value="Ada"),
        act(200, "click", make_button("Send"), button=0),
    )
    with serving_pages({**pages, "/form": FORM}) as (port, paths):
        shown = replay_on_ports(recorded.caller, session_id, RECORDED, port)
    assert shown["status"] == "completed", shown
    assert sorted(paths[-2:]) == ["/name/Ada", "/sent"]
