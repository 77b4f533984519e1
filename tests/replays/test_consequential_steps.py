"""Consequential steps: what must not be repeated without an order."""

from typing import Any

import pytest

from recorder.replays.consequences import is_consequential, list_consequential
from recorder.replays.recorded_session import RecordedSession, RecordedTag


def event(kind: str = "click", **members: Any) -> dict[str, Any]:
    return {"id": "evt_1", "t_ms": 5, "type": kind, **members}


@pytest.mark.parametrize(
    "item",
    [
        event(target={"role": "button", "name": "Approve invoice"}),
        event(target={"role": "button", "name": "OK", "attrs": {"type": "submit"}}),
        event(target={"name": "x"}, signals=[{"type": "request", "method": "post"}]),
        event("press", target={"role": "textbox"}, input={"key": "Enter"}),
        event("press", target={"tag": "input"}, input={"key": "Enter"}),
        event("press", target={"role": "button", "name": "Pay"}, input={"key": " "}),
        event("press", target={"role": "link", "name": "Delete account"}, input={"key": "Enter"}),
        event("tool_call", data={"name": "sendEmail"}),
        event("tool_call", data={"name": "email_delete"}),
        event("dblclick", target={"text": "Pay now"}),
    ],
)
def test_steps_that_change_something(item: dict[str, Any]) -> None:
    assert is_consequential(item)


@pytest.mark.parametrize(
    "item",
    [
        event(target={"role": "button", "name": "Sign in"}),
        event(target={"role": "link", "name": "Open invoices"}),
        event("fill", target={"role": "textbox", "name": "Send to"}),
        event("press", target={"role": "textbox"}, input={"key": "Tab"}),
        event("press", target={"role": "button", "name": "Search"}, input={"key": "Space"}),
        event("press", target={"role": "button", "name": "Pay"}, input={"key": "Tab"}),
        event("press", target={"role": "textbox", "name": "Send to"}, input={"key": " "}),
        event("navigate", url="https://erp.example/pay"),
        event("tool_call", data={"name": 5}),
        event("tool_call", data=None, target=None),
    ],
)
def test_steps_that_only_look(item: dict[str, Any]) -> None:
    assert not is_consequential(item)


def test_a_tag_marks_the_event_that_it_anchors() -> None:
    events = [{"id": f"evt_{n}", "t_ms": n * 10, "type": "hover"} for n in range(4)]
    session = RecordedSession("ses_1", events, [], [RecordedTag("tag_1", "consequential", 11)])
    assert list_consequential(session) == {"evt_2"}
