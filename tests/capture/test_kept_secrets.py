"""Secrets that a page shows outside of their fields: masked titles, and copies of secret values."""

from typing import Any

from recorder import Client
from tests.capture.test_captured_actions import events_of, recording_of
from tests.support.captured_pages import read_dom

FIELDS = """<!doctype html><title>Fields</title><input id=long type=password><input id=pin type=password>
    <p id=echo></p><button onclick="echo.textContent =
    `shown ${long.value} and ${pin.value} and ${window.earlier || ''}`; earlier = pin.value">Show</button>"""


def read_stored(client: Client, session_id: str) -> str:
    """The events and frames of a session with their snapshots, as one text."""
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
