"""Real Chromium under Playwright, and captured sessions as replays take them."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from PIL import Image

from recorder import Client
from recorder.client.transport import TransportCall
from recorder.memory.steps.screens import describe_screen
from recorder.replays.recorded_session import RecordedFrame, RecordedSession, RecordedTag
from tests.support.browser import find_chromium
from tests.support.databases import part_is_missing


def find_browser() -> str:
    """Return the path of Chromium; without it or Playwright the test skips."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        part_is_missing("Playwright is not installed (pip install playwright==1.65.2).")
    return os.environ.get("RECORDER_CHROMIUM") or find_chromium()  # noqa: TID251


@contextmanager
def running_browser() -> Iterator[Any]:
    """Yield a browser of sync Playwright."""
    path = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            browser.close()


def read_dom(client: Client, session_id: str, frame_id: str) -> dict[str, Any]:
    """Return the stored snapshot of a frame."""
    call = TransportCall("GET", f"/v1/sessions/{session_id}/frames/{frame_id}/dom", repeatable=True)
    return orjson.loads(client._transport.send(call).content)  # type: ignore[no-any-return]


def read_picture(client: Client, session_id: str, frame_id: str) -> Image.Image:
    """Return the stored picture of a frame."""
    call = TransportCall("GET", f"/v1/sessions/{session_id}/frames/{frame_id}/image", repeatable=True)
    return Image.open(io.BytesIO(client._transport.send(call).content)).convert("RGB")


def count_pixels(picture: Image.Image) -> tuple[int, int]:
    """Return the red pixels of a picture, and the blue ones."""
    counts = [0, 0]
    for count, (red, green, blue) in picture.getcolors(picture.width * picture.height) or []:  # type: ignore[misc]
        counts[0] += count * (red > 180 and green < 90 and blue < 90)
        counts[1] += count * (blue > 180 and green < 90 and red < 90)
    return counts[0], counts[1]


def read_recorded(client: Client, session_id: str) -> RecordedSession:
    """Return a stored session, with the digests that sealing computes."""
    events = list(client.list_events(session_id))
    frames = [_read_frame(client, session_id, frame) for frame in client.list_frames(session_id)]
    tags = [RecordedTag(tag["id"], tag["name"], tag["t_ms"]) for tag in client.list_tags(session_id)]
    return RecordedSession(session_id, events, frames, tags)


def _read_frame(client: Client, session_id: str, frame: dict[str, Any]) -> RecordedFrame:
    dom = read_dom(client, session_id, frame["id"]) if frame["has_dom"] else None
    screen = describe_screen(dom=dom, url=frame["url"], title=None, cells=None)
    read: Callable[[], dict[str, Any] | None] = lambda: dom  # noqa: E731
    return RecordedFrame(frame["id"], frame["t_ms"], screen.state_tokens, read)
