"""One captured page: frames before and after actions, and its events with their targets."""

import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from recorder.capture.capture_journal import CaptureJournal
from recorder.capture.captured_targets import (
    describe_captured_target,
    is_sign_in_target,
    make_target_secret_name,
)
from recorder.capture.page_reader import PageReader, PageReading, Send, parse_page_boxes
from recorder.capture.pictures import paint_over_areas
from recorder.capture.script_messages import (
    PageScriptAction,
    PageScriptDrop,
    PageScriptProblem,
    PageScriptSecrets,
    PageScriptSettled,
    parse_script_message,
)
from recorder.client.upload_batches import CapturedFrame
from recorder.ids import new_id
from recorder.replays.budget import Budget
from recorder.replays.consequences import CHANGING_METHODS
from recorder.replays.dom import DomDocument, DomElement, read_dom_document

_log = logging.getLogger(__name__)
#: Readings that events may still refer to.
_KEPT_STATES = 4
#: Tries to take a picture that shows the same state as the snapshot.
_PICTURE_TRIES = 3
#: Frames between two actions that a moving page can cause.
_MAX_FRAMES_BEFORE_ACTION = 2
#: Failed pictures in a row after which none is tried again: each may cost a timeout.
_MAX_FAILED_PICTURES = 3
_QUALITY = 60
_NODES = 200_000
#: Events of the DevTools protocol that a captured page needs.
PROTOCOL_EVENTS = (
    "Page.frameNavigated",
    "Page.frameRequestedNavigation",
    "Page.javascriptDialogClosed",
    "Page.javascriptDialogOpening",
    "Page.navigatedWithinDocument",
    "Runtime.bindingCalled",
    "Runtime.executionContextCreated",
    "Runtime.executionContextsCleared",
)


@dataclass
class _PageState:
    """A reading of the page, with the frame that shows it."""

    reading: PageReading
    frame_id: str | None = None
    document: DomDocument | None = None

    def read_document(self) -> DomDocument | None:
        if self.document is None:
            self.document = read_dom_document(self.reading.dom, lambda _: None, Budget(_NODES))
        return self.document


class CapturedPage:
    """The capture of one page."""

    def __init__(
        self, name: str, send: Send, journal: CaptureJournal, add_frame: Callable[[CapturedFrame], None]
    ) -> None:
        self.name = name
        self.reader = PageReader(send)
        self._journal = journal
        self._add_frame = add_frame
        self._states: dict[str, _PageState] = {}
        self._picture: bytes | None = None
        self._failed_pictures = 0
        self._frames_before_action = 0
        self._is_requested = False
        self._is_post = False
        self._dialog: dict[str, Any] = {}
        #: Called when the page is at rest after an action.
        self.on_settled: Callable[[], None] = lambda: None
        #: Called before each action in the page.
        self.on_action: Callable[[], None] = lambda: None

    async def prepare_action(self) -> None:
        """Take a frame of the state before the program's next action, unless there is one."""
        state = await self.reader.call("arm")
        if self.has_frame(str(state["version"])):
            return
        if self._frames_before_action >= _MAX_FRAMES_BEFORE_ACTION:
            return
        self._frames_before_action += 1
        await self.take_frame()

    async def take_frame(self) -> None:
        """Take a frame of the page as it is: its snapshot, and a picture of the same state."""
        if self._failed_pictures >= _MAX_FAILED_PICTURES:
            return
        for _ in range(_PICTURE_TRIES):
            t_ms = self._journal.now_ms
            reading = await self.reader.read()
            state = self._keep_state(reading)
            if state.frame_id is not None:
                return
            picture = await self._take_screenshot()
            is_same = (await self.read_document_version())[0] == state.reading.version
            if is_same:
                break
        # What moves is painted over where it was before the picture, and where it is after it.
        rects = (*reading.masked_rects, *parse_page_boxes(await self.reader.call("boxes")))
        self._journal_frame(state, self._mask_screenshot(picture, rects, state.reading.scale), t_ms)

    async def read_document_version(self) -> tuple[str, bool]:
        """Return the version of the document, and whether the page is loaded."""
        state = await self.reader.call("check")
        return str(state["version"]), state["ready"] == "complete"

    def has_frame(self, version: str) -> bool:
        """Return whether a frame shows this version."""
        return version in self._states and self._states[version].frame_id is not None

    def handle_event(self, method: str, params: Mapping[str, Any]) -> None:
        """Take an event of the DevTools protocol."""
        match method:
            case "Runtime.bindingCalled":
                if self.reader.is_own_context(params.get("executionContextId")):
                    self._handle_script_message(params.get("payload"))
            case "Page.frameRequestedNavigation":
                if params["frameId"] == self.reader.frame_id:
                    self._is_requested = params.get("reason") != "reload"
                    self._is_post = params.get("reason") == "formSubmissionPost"
            case "Page.frameNavigated":
                frame = params["frame"]
                if frame["id"] == self.reader.frame_id:
                    self._journal_navigation(str(frame["url"]) + str(frame.get("urlFragment") or ""))
            case "Page.navigatedWithinDocument":
                if params["frameId"] == self.reader.frame_id:
                    self._is_requested = True
                    self._journal_navigation(str(params["url"]))
            case "Page.javascriptDialogOpening":
                self._dialog = {
                    "kind": str(params.get("type"))[:20],
                    "message": str(params.get("message"))[:1_000],
                }
            case "Page.javascriptDialogClosed":
                self._journal_dialog(accepted=bool(params.get("result")))
            case _:
                self.reader.handle_event(method, params)

    def add_opening(self, url: str, *, is_popup: bool) -> None:
        """Take the address at which the capture of the page begins."""
        if not is_popup:
            self._journal_navigation(url)
        elif url in ("", "about:blank"):
            # What opened the page causes its first navigation too.
            self._is_requested = True

    def add_request(self, url: str, *, method: str, kind: str) -> None:
        """Take a request of the page: one that may change something is a signal of the step before it."""
        if method.upper() not in CHANGING_METHODS or kind not in ("fetch", "xhr"):
            return
        page, request = urlsplit(self._get_latest_url()), urlsplit(url)
        if (page.scheme, page.netloc) == (request.scheme, request.netloc):
            self._journal.add_request(method.upper(), self._journal.redact(url))

    def add_download(self, filename: str) -> None:
        """Take a download."""
        signal = {"type": "download", "filename": filename[:255]}
        event = self._make_event("download", self._journal.now_ms)
        self._journal.add_effect({**event, "data": {"filename": filename[:255]}}, signal)

    def _handle_script_message(self, payload: object) -> None:
        match parse_script_message(payload):
            case PageScriptAction() as message:
                self.on_action()
                self._frames_before_action = 0
                self._journal_action(message)
            case PageScriptSecrets(document, digests):
                self._journal.keep_secrets(document, digests)
            case PageScriptSettled():
                self.on_settled()
            case PageScriptProblem(where):
                _log.warning("The page script failed on an event of the type %s.", where)

    def _journal_action(self, message: PageScriptAction) -> None:
        """Add the event of an action that the page's script reported, and the frame before it."""
        t_ms = self._journal.convert_time(message.time_ms)
        if message.reading is not None:
            self._keep_state(message.reading)
        state = self._states.get(message.version)
        if state is not None and state.frame_id is None and self._picture is not None:
            # The picture before is a little older than the snapshot.
            self._journal_frame(state, self._picture, t_ms)
        event = self._make_event(message.type, t_ms)
        if message.type == "dblclick" and message.continues_click:
            if self._journal.join_double_click(event["app"]):
                return
            # The first click is a step already.
            event["type"] = "click"
        given = dict(message.given)
        if state is not None:
            event["url"], event["title"] = self._journal.redact(state.reading.url), state.reading.title
            if state.frame_id is not None:
                event["frame_id"] = state.frame_id
            document = state.read_document()
            if document is not None and 0 <= message.index < len(document.elements):
                element = document.elements[message.index]
                event["target"] = _describe_captured_page_target(
                    document, element, message, state.reading.scale
                )
                if message.is_secret or given.get("masked"):
                    given["secret_ref"] = make_target_secret_name(document, element)
                    self._journal.add_secret_name(element.read_attribute("name") or "")
                if event["type"] in ("click", "press") and is_sign_in_target(element):
                    event["data"] = {"signs_in": True}
            if document is not None and message.drop and 0 <= message.drop.index < len(document.elements):
                drop = document.elements[message.drop.index]
                event["data"] = {
                    "drop": _describe_captured_page_target(document, drop, message.drop, state.reading.scale)
                }
            for name in given.keys() & {"point", "to"}:
                given[name] = [round(number * state.reading.scale) for number in given[name]]
        if given:
            event["input"] = given
        self._journal.add_step(event)

    def _journal_navigation(self, url: str) -> None:
        """Add a navigation: as the effect of the last action if it caused it, else as an event of its own."""
        is_caused, self._is_requested = self._is_requested, False
        is_post, self._is_post = self._is_post, False
        if not url or url == "about:blank":
            return
        url = self._journal.redact(url)
        signal: dict[str, Any] | None = None
        if is_caused:
            signal = {"type": "navigation", "url": url}
            if is_post and not self._journal.is_sign_in:
                signal["method"] = "POST"
        if signal is None:
            self.on_action()
        event = self._make_event("navigate", self._journal.now_ms)
        self._journal.add_effect({**event, "url": url}, signal)

    def _journal_dialog(self, *, accepted: bool) -> None:
        """Add the event of a dialog that was accepted or dismissed."""
        data = {**self._dialog, "accepted": accepted}
        event = self._make_event("dialog", self._journal.now_ms)
        self._journal.add_effect({**event, "data": data}, {"type": "dialog", **data})

    def _make_event(self, kind: str, t_ms: int) -> dict[str, Any]:
        return {"t_ms": t_ms, "type": kind, "app": {"name": "chromium", "page": self.name}}

    def _get_latest_url(self) -> str:
        return next(reversed(self._states.values())).reading.url if self._states else ""

    async def _take_screenshot(self) -> bytes:
        try:
            answer = await self.reader.send(
                "Page.captureScreenshot", {"format": "webp", "quality": _QUALITY, "optimizeForSpeed": True}
            )
        except Exception as error:
            # Of Playwright, or of another driver.
            self._failed_pictures += "Timeout" in type(error).__name__
            raise
        self._failed_pictures = 0
        return base64.b64decode(answer["data"])

    def _mask_screenshot(
        self, picture: bytes, rects: tuple[tuple[int, int, int, int], ...], scale: float
    ) -> bytes:
        if not rects:
            return picture
        scaled = [[round(number * scale) for number in rect] for rect in rects]
        return paint_over_areas(picture, scaled, quality=_QUALITY)

    def _keep_state(self, reading: PageReading) -> _PageState:
        """Keep a reading: the page script sends no version twice."""
        if reading.version in self._states:
            return self._states[reading.version]
        state = self._states[reading.version] = _PageState(reading)
        while len(self._states) > _KEPT_STATES:
            del self._states[next(iter(self._states))]
        self._journal.name_page(self._journal.redact(reading.url), reading.title)
        return state

    def _journal_frame(self, state: _PageState, picture: bytes, t_ms: int) -> None:
        """Make a frame of a page state and its screenshot, and pass it to the sender."""
        reading = state.reading
        self._picture = picture
        state.frame_id = new_id("frm")
        members: dict[str, Any] = {
            "id": state.frame_id,
            "url": self._journal.redact(reading.url),
            "dom": reading.dom,
        }
        if reading.masked_rects:
            members["masked_rects"] = [
                [round(number * reading.scale) for number in rect] for rect in reading.masked_rects
            ]
        self._add_frame(CapturedFrame.of(picture, t_ms=t_ms, content_type="image/webp", **members))


def _describe_captured_page_target(
    document: DomDocument, element: DomElement, message: PageScriptAction | PageScriptDrop, scale: float
) -> dict[str, Any]:
    rect = None if message.rect is None else [round(number * scale) for number in message.rect]
    return describe_captured_target(document, element, rect=rect, frame_path=message.frame_path)
