"""Page of a live replay, read in the form of stored snapshots, and masked as they are. Spec §4.6."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from recorder.capture.page_reader import PageUnreadable, parse_page_reading
from recorder.live.browser import Browser
from recorder.live.hidden_inputs import HiddenInputs, HiddenPage
from recorder.memory.steps.screens import describe_screen
from recorder.net.addresses import WEB_PORTS
from recorder.replays.budget import Budget
from recorder.replays.dom import DomDocument, read_dom_document
from recorder.replays.recorded_session import RecordedFrame

_FIRST_FAILURE = 400
_MOST_URL_CHARACTERS = 2_000


@dataclass(frozen=True)
class LivePageState:
    """State of the browser at one moment, and what happened since the last action."""

    #: None while the page cannot be read.
    page: DomDocument | None
    frame: RecordedFrame
    url: str
    title: str
    #: Address as the browser has it, to be compared and not stored: inputs and masked texts are in it.
    raw_url: str = field(repr=False)
    #: Equal for two states between which the page did not change.
    version: str
    #: Addresses of pages that were loaded or failed to, with the status that was answered; as `raw_url`.
    loads: Sequence[tuple[str, int | None]] = field(repr=False)
    dialogs: Sequence[Mapping[str, str]]
    #: Number of pages that were opened since, and are not acted on.
    pages: int
    #: Which elements a picture of the page must not show; None where that is unknown.
    hidden: HiddenPage | None

    @property
    def has_failed(self) -> bool:
        """Return whether the last page that was loaded came with an error's status."""
        statuses = [status for _, status in self.loads if status is not None]
        return bool(statuses) and statuses[-1] >= _FIRST_FAILURE


def read_page_state(
    browser: Browser, mask: Callable[[Any], Any], inputs: HiddenInputs, budget: Budget
) -> LivePageState:
    """Return the state of the page; texts are masked like those of recordings, and without the inputs.

    Args:
        browser: the browser.
        mask: masks the texts of a value.
        inputs: values that the page may show.
        budget: every node counts.

    Raises:
        BrowserLost, PageUnresponsive: as the browser.
        InvalidRecording, BudgetExceeded: if the page is too large.
    """
    answer = browser.call("read")
    raw_url = str(answer["address"])
    # The page's own text is without the values of its secret fields, but a page can give any address.
    page_url = str(answer["url"])
    shown = page_url if has_same_live_page_origin(page_url, raw_url) else raw_url[:_MOST_URL_CHARACTERS]
    texts = {"url": inputs.hide_text(shown), "title": ""}
    dom: dict[str, Any] | None = None
    page: DomDocument | None = None
    hidden: HiddenPage | None = None
    version = ""
    with suppress(PageUnreadable):
        if answer.get("html") is not None:
            reading = parse_page_reading(answer)
            hidden = inputs.hide_page(reading.dom["html"])
            texts["title"] = inputs.hide_text(reading.title)
            dom = {**reading.dom, "html": mask({"html": hidden.html})["html"]}
            version = reading.version
            # Texts that were not read are in no snapshot, but a picture would show them.
            hidden = None if inputs and reading.truncated else hidden
    texts = mask(texts)
    tokens: tuple[str, ...] = ()
    if dom is not None:
        page = read_dom_document(dom, lambda _: None, budget)
        tokens = describe_screen(dom=dom, url=texts["url"], title=texts["title"], cells=None).state_tokens
    loads = [(str(url), int(status)) for url, status in answer["statuses"]]
    return LivePageState(
        page,
        RecordedFrame("live", 0, tokens, lambda: dom),
        texts["url"],
        texts["title"],
        raw_url,
        version,
        [*loads, *((str(url), None) for url in answer["failures"])],
        answer["dialogs"],
        int(answer["pages"]),
        hidden,
    )


def has_same_live_page_origin(url: str, other: str) -> bool:
    """Return whether two addresses have the same scheme, host and port."""
    origin = _find_live_page_origin(url)
    return origin is not None and origin == _find_live_page_origin(other)


def _find_live_page_origin(url: str) -> tuple[str, str, int | None] | None:
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.scheme not in WEB_PORTS:
            return None
        return parts.scheme, parts.hostname.removesuffix("."), parts.port or WEB_PORTS[parts.scheme]
    except ValueError:
        return None


def map_live_page_url(url: str, base_url_map: Mapping[str, str]) -> str:
    """Return the address to open for a recorded address: the policy may replace its origin."""
    for recorded, live in base_url_map.items():
        if has_same_live_page_origin(url, recorded):
            base = urlsplit(live.rstrip("/"))
            return urlsplit(url)._replace(scheme=base.scheme, netloc=base.netloc).geturl()
    return url
