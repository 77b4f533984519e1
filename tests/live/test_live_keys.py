"""Keys in live replays that the browser does not know: nothing is pressed, or held. Spec §4.6."""

from typing import Any

import pytest
from playwright.sync_api import Error

from recorder.live.playwright_actions import perform_playwright_action, was_action_sent
from tests.live.conftest import Recorded
from tests.support.captured_pages import running_browser
from tests.support.factories import event
from tests.support.small_sites import replay_on_ports, serving_pages, store_events

RECORDED = "http://shop.example"
PAGE = """<!doctype html><title>Shop</title><h1>Shop</h1><script>
const keys = [];
for (const type of ["keydown", "keyup"]) addEventListener(type, (event) => keys.push(`${type} ${event.key}`));
</script>"""


def press(key: str, *modifiers: str) -> dict[str, Any]:
    """Return the command that presses a key."""
    name = "+".join([*modifiers, key])
    return {"type": "press", "key": name, "modifiers": list(modifiers), "value": None, "timeout_ms": 4_000}


def test_a_key_that_the_browser_does_not_know_holds_no_modifier() -> None:
    with running_browser() as browser:
        page = browser.new_page()
        page.set_content(PAGE)
        for command, is_sent, keys in (
            (press("é"), False, []),
            (press("é", "Control"), None, ["keydown Control", "keyup Control"]),
        ):
            with pytest.raises(Error) as raised:
                perform_playwright_action(page, None, command)
            assert was_action_sent(page, command, raised.value) is is_sent
            assert page.evaluate("keys.splice(0)") == keys


def test_a_step_with_such_a_key_was_not_sent(recorded: Recorded) -> None:
    session_id = store_events(
        recorded.caller,
        event(0, "navigate", url=f"{RECORDED}/"),
        event(100, "press", url=f"{RECORDED}/", input={"key": "é"}),
    )
    with serving_pages({"/": PAGE}) as (port, _):
        shown = replay_on_ports(recorded.caller, session_id, RECORDED, port)
    assert (shown["status"], shown["divergence"]["kind"]) == ("diverged", "action_failed")
    assert shown["rows"][-1]["delivery"] == "confirmed"
