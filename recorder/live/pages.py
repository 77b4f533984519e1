"""Page of a live replay, read in the form of stored snapshots, and masked as they are. Spec §4.6."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from recorder.live.browser import Browser
from recorder.memory.steps.screens import describe_screen
from recorder.replays.budget import Budget
from recorder.replays.dom import DomDocument, read_document
from recorder.replays.recordings import RecordedFrame

_FIRST_FAILURE = 400


@dataclass(frozen=True)
class LiveState:
    """State of the browser at one moment, and what happened since the last action."""

    #: None while the page cannot be read.
    page: DomDocument | None
    frame: RecordedFrame
    url: str
    #: Equal for two states between which the page did not change.
    version: str
    #: Addresses of pages that were loaded or failed to, with the status that was answered.
    loads: Sequence[tuple[str, int | None]]
    dialogs: Sequence[Mapping[str, str]]
    pages: int

    @property
    def has_failed(self) -> bool:
        """Return whether the last page that was loaded came with an error's status."""
        statuses = [status for _, status in self.loads if status is not None]
        return bool(statuses) and statuses[-1] >= _FIRST_FAILURE


def read_state(browser: Browser, mask: Callable[[Any], Any], budget: Budget) -> LiveState:
    """Return the state of the page; texts are masked like those of recordings.

    Args:
        browser: the browser.
        mask: masks the texts of a value.
        budget: every node counts.

    Raises:
        BrowserLost, PageStuck: as the browser.
        InvalidRecording, BudgetSpent: if the page is too large.
    """
    answer = browser.call("read")
    html = answer.get("html")
    dom: dict[str, Any] | None = None
    page: DomDocument | None = None
    tokens: tuple[str, ...] = ()
    if html is None:
        answer["url"] = mask({"url": str(answer["url"])})["url"]
    else:
        masked = mask({"html": html, "url": answer["url"], "title": str(answer.get("title", ""))})
        dom = {"v": 1, "format": "nodes", "html": masked["html"]}
        page = read_document(dom, lambda _: None, budget)
        tokens = describe_screen(dom=dom, url=masked["url"], title=masked["title"], cells=None).state_tokens
        answer["url"] = masked["url"]
    loads = [(str(url), int(status)) for url, status in answer["statuses"]]
    return LiveState(
        page,
        RecordedFrame("live", 0, tokens, lambda: dom),
        str(answer["url"]),
        str(answer.get("version", "")),
        [*loads, *((str(url), None) for url in answer["failures"])],
        answer["dialogs"],
        int(answer["pages"]),
    )


def map_url(url: str, base_url_map: Mapping[str, str]) -> str:
    """Return the address to open for a recorded one: its origin is replaced where the policy says so."""
    parts = urlsplit(url)
    for recorded, live in base_url_map.items():
        if urlsplit(recorded.rstrip("/")).netloc == parts.netloc and recorded.startswith(f"{parts.scheme}:"):
            base = urlsplit(live.rstrip("/"))
            return parts._replace(scheme=base.scheme, netloc=base.netloc, fragment="").geturl()
    return parts._replace(fragment=parts.fragment).geturl()
