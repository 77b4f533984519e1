"""Captured pages that open each other: their names, their order, and the frames after their steps."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from recorder import Client
from recorder.capture import PageRecording, record
from recorder.replays.dry_replay import replay_dry
from recorder.replays.recorded_session import list_recorded_steps
from recorder.replays.replay_policy import ReplayPolicy
from tests.support.captured_pages import read_recorded

SITE = "https://app.example"
PAGES = {
    "/": """<title>Opener</title><h1>Opener</h1><input aria-label=City>
<button id=open onclick="window.open('/other')">Open</button>
<button id=here onclick="document.body.append('Here. ')">Here</button>""",
    "/other": """<title>Other</title><h1>Other</h1>
<button id=there onclick="document.body.append('There. ')">There</button>""",
}


@contextmanager
def recording_popup(page: Any, client: Client) -> Iterator[tuple[PageRecording, Any]]:
    """Yield a recording of a page that has opened a popup, and the popup."""

    from playwright.sync_api import Error

    def answer(route: Any) -> None:
        body = PAGES.get(route.request.url.removeprefix(SITE), "<h1>Later</h1>")
        # The page may be closed before its request is answered.
        with suppress(Error):
            route.fulfill(body=body, content_type="text/html")

    page.context.route(f"{SITE}/**", answer)
    with record(page, workflow="capture_test", client=client) as recording:
        page.goto(f"{SITE}/")
        with page.expect_popup() as opened:
            page.click("#open")
        yield recording, opened.value
    assert recording.stats.errors == 0


def list_steps(client: Client, recording: PageRecording) -> list[tuple[str, str]]:
    """Return the type and page of the events after the one that opens the popup."""
    events = list(client.list_events(recording.id))
    types = [event["type"] for event in events]
    after = events[types.index("tab_open") + 1 :]
    for event in after:
        if event["type"] in ("tab_switch", "tab_close"):
            assert event["data"] == {"page": event["app"]["page"]}
    return [(event["type"], event["app"]["page"]) for event in after]


def test_a_page_gone_to_or_closed_is_named(page: Any, client: Client) -> None:
    with recording_popup(page, client) as (recording, popup):
        popup.click("#there")
        page.click("#here")
        popup.click("#there")
        popup.close()
        page.click("#here")
    assert list_steps(client, recording) == [
        ("click", "p2"),
        ("tab_switch", "p1"),
        ("click", "p1"),
        ("tab_switch", "p2"),
        ("click", "p2"),
        ("tab_close", "p2"),
        ("tab_switch", "p1"),
        ("click", "p1"),
    ]
    recorded = read_recorded(client, recording.id)
    for against in (None, recorded):
        dry = replay_dry(
            recorded,
            mode="full",
            anchor=None,
            until=None,
            policy=ReplayPolicy(),
            input_names=frozenset(),
            against=against,
        )
        assert (dry.status, len(dry.steps)) == ("completed", 10), dry


def test_what_was_typed_last_comes_before_the_steps_of_another_page(page: Any, client: Client) -> None:
    with recording_popup(page, client) as (recording, popup):
        page.fill("[aria-label=City]", "Lisbon")
        popup.click("#there")
    steps = list_steps(client, recording)
    assert steps == [("tab_switch", "p1"), ("fill", "p1"), ("tab_switch", "p2"), ("click", "p2")]


def test_an_address_opened_in_another_page_is_a_step_of_that_page(page: Any, client: Client) -> None:
    with recording_popup(page, client) as (recording, popup):
        popup.click("#there")
        page.goto(f"{SITE}/later")
    assert list_steps(client, recording) == [("click", "p2"), ("tab_switch", "p1"), ("navigate", "p1")]


def test_the_frame_after_a_step_is_of_the_page_of_the_step(page: Any, client: Client) -> None:
    with recording_popup(page, client) as (recording, popup):
        popup.get_by_role("heading").hover()
        page.get_by_role("heading").hover()  # a frame is taken, and no step done
        for _ in range(2):
            popup.click("#there")
            page.click("#here")
            popup.wait_for_timeout(200)
            popup.click("#there")
            popup.wait_for_timeout(200)
    urls = {frame["id"]: frame["url"] for frame in client.list_frames(recording.id)}
    recorded = read_recorded(client, recording.id)
    pages = {"p1": f"{SITE}/", "p2": f"{SITE}/other"}
    compared = 0
    for step in list_recorded_steps(recorded):
        signals = step.event.get("signals", ())
        page_name = "p2" if signals and signals[0]["type"] == "popup" else step.event["app"]["page"]
        if step.after is not None:
            compared += 1
            assert urls[recorded.frames[step.after].frame_id] == pages[page_name], step
    assert compared >= 4


def test_popups_that_close_at_once_are_no_failures(page: Any, client: Client) -> None:
    with recording_popup(page, client) as (recording, _):
        for wait_ms in (0, 0, 20, 40, 60, 80, 100, 150):
            page.evaluate(
                "wait => { const popup = window.open('/other'); setTimeout(() => popup.close(), wait) }",
                wait_ms,
            )
            page.wait_for_timeout(wait_ms)
    events = read_recorded(client, recording.id).events
    kinds = [event["type"] for event in events]
    assert (kinds.count("tab_open"), kinds.count("tab_close")) == (9, 8)
