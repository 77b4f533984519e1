"""Secrets that a page shows outside of their fields: masked titles, and copies of secret values."""

from typing import Any

from recorder import Client
from tests.capture.test_captured_actions import events_of, recording_of
from tests.support.captured_pages import read_dom

FIELDS = """<!doctype html><title>Fields</title><input id=long type=password><input id=pin type=password>
    <p id=echo></p><button onclick="echo.textContent =
    `shown ${long.value} and ${pin.value} and ${window.earlier || ''}`; earlier = pin.value">Show</button>"""


def read_stored(client: Client, session_id: str) -> str:
    """Return the events and frames of a session with their snapshots, as one text."""
    frames = list(client.list_frames(session_id))
    snapshots = [read_dom(client, session_id, frame["id"]) for frame in frames if frame["has_dom"]]
    return str([*client.list_events(session_id), *frames, *snapshots])


def test_a_title_under_a_mask_stays_in_the_page(page: Any, client: Client) -> None:
    for number, html in enumerate(
        (
            "<!doctype html><html data-mask><title>Ada Lovelace</title><button>Go</button>",
            "<!doctype html><title data-mask>Ada Lovelace</title><button>Go</button>",
        )
    ):
        with recording_of(page, client, html) as recording:
            page.click("button")
        assert "Lovelace" not in read_stored(client, recording.id), number
        assert {event["title"] for event in events_of(client, recording)} == {"•••"}


def test_a_secret_that_another_one_begins_with_is_kept_too(page: Any, client: Client) -> None:
    with recording_of(page, client, FIELDS) as recording:
        page.fill("#long", "73519284")
        page.fill("#pin", "7351")
        page.click("button")
        # Typed into the same field, one begins with the other.
        page.locator("#pin").clear()
        page.locator("#pin").press_sequentially("735192")
        page.locator("#pin").press("Backspace")
        page.click("button")
        page.click("button")
    assert events_of(client, recording)
    stored = read_stored(client, recording.id)
    assert "shown ••• and ••• and •••" in stored
    assert "7351" not in stored


def test_addresses_and_dialogs_show_no_secret(page: Any, client: Client) -> None:
    html = """<!doctype html><title>Code</title><input id=code autocomplete=one-time-code>
        <button id=ask onclick="confirm(`Use ${code.value}?`)">Ask</button>
        <button id=send onclick="fetch('/verify/' + code.value, {method: 'POST'})">Send</button>
        <button id=route onclick="history.pushState({}, '', '/codes/' + code.value)">Route</button>
        <button id=go onclick="location = '/done/' + encodeURIComponent('code ' + code.value)">Go</button>"""
    with recording_of(page, client, html) as recording:
        page.on("dialog", lambda dialog: dialog.accept())
        page.fill("#code", "40/7351")
        for name in ("ask", "send", "route"):
            page.click(f"#{name}")
        page.click("#go")
        page.get_by_text("gone").click()
        # A word that many addresses hold.
        page.goto("https://app.example/start")
        page.fill("#code", "admin")
        page.goto("https://app.example/admin/orders")
    events = events_of(client, recording)
    stored = read_stored(client, recording.id)
    assert "7351" not in stored, events
    signals = [signal for event in events for signal in event.get("signals") or ()]
    assert [
        signal.get("message") or signal["url"].removeprefix("https://app.example") for signal in signals
    ] == [
        "Use •••?",
        "/verify/•••",
        "/codes/•••",
        "/done/code%20•••",
    ]
    assert events[-1]["url"] == "https://app.example/admin/orders"
