"""Recording of a Playwright page as a session: `with record(page, …)`, `async with` for an async page.

A failure of the recording never reaches the program: it is logged and counted in `stats`.
"""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from recorder.capture.capture_journal import CaptureJournal
from recorder.capture.captured_page import PROTOCOL_EVENTS, CapturedPage
from recorder.capture.page_reader import PageUnreadable
from recorder.capture.sender import CaptureStats, Sender, SessionChoice
from recorder.capture.sync_pages import is_async_page, run_sync_page_coroutine
from recorder.client.client import Client
from recorder.client.upload_batches import CapturedFrame

if TYPE_CHECKING:
    from playwright.async_api import Page as AsyncPage
    from playwright.sync_api import Page as SyncPage

_log = logging.getLogger(__name__)
#: Longest time of one call to the browser.
_CALL_MS = 10_000
_MAX_PAGES = 20
#: Of each page, while the actor is in another one; they are beside the sender's limit of memory.
_MAX_HELD_FRAMES = 4
#: How long the last state of a page may take until it is at rest.
_REST_S = 2.0
_QUIET_S = 0.15
#: Playwright's errors of a page that is closed have no public type.
_CLOSED = re.compile("has been closed|no object with guid|No target with given id")


def record(
    page: "SyncPage | AsyncPage",
    *,
    workflow: str,
    client: Client,
    actor: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    session_id: str | None = None,
    patience_s: float = 10.0,
) -> "PageRecording":
    """Return a context manager that records a Chromium page, and the pages that it opens, as a session.

    Args:
        page: a page of Playwright; `with` for a sync page, `async with` for an async one.
        workflow: slug of the workflow.
        client: client of the service; the recording does not close it.
        actor: `{id, kind}` of who acts.
        metadata: metadata of the session.
        session_id: a session that is recording already; it is not stopped at the end.
        patience_s: seconds at the end within which the rest must be sent.
    """
    choice = SessionChoice(workflow, actor, metadata, session_id)
    return PageRecording(page, Sender(client, choice), patience_s)


class PageRecording:
    """A recording in progress."""

    def __init__(self, page: Any, sender: Sender, patience_s: float) -> None:
        self._page = page
        self._sender = sender
        self._patience_s = patience_s
        self._journal = CaptureJournal(sender.add_event)
        #: Pages that are open, the one acted in last at the end.
        self._pages: dict[Any, _PageHandle] = {}
        #: The page of the last step; it may be closed.
        self._acting: Any = page
        #: The page in which the program acts.
        self._prepared: Any = page
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_async = False
        self._is_open = False
        self._names = 0

    @property
    def id(self) -> str:
        """Id of the session; empty until the service has created it."""
        return self._sender.session_id

    @property
    def stats(self) -> CaptureStats:
        """Counts of what was recorded, dropped and failed."""
        return self._sender.stats

    def tag(self, name: str, **data: Any) -> None:
        """Tag this moment; `data` is the tag's payload."""
        self._sender.add_tag(name, self._journal.now_ms, data)

    def __enter__(self) -> Self:
        if is_async_page(self._page):
            raise TypeError("An async page is recorded with `async with record(page, …)`.")
        self._begin_recording()
        run_sync_page_coroutine(self._guard(self._open_page(self._register_page(self._page))))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_sync_page_coroutine(self._guard(self._finish()))
        self._end_recording(error)

    async def __aenter__(self) -> Self:
        if not is_async_page(self._page):
            raise TypeError("A sync page is recorded with `with record(page, …)`.")
        self._is_async = True
        self._begin_recording()
        await self._guard(self._open_page(self._register_page(self._page)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._guard(self._finish())
        for task in list(self._tasks):
            task.cancel()
        await asyncio.to_thread(self._end_recording, error)

    def _begin_recording(self) -> None:
        self._is_open = True
        self._sender.start()

    def _end_recording(self, error: BaseException | None) -> None:
        self._is_open = False
        self._journal.send_held_step()
        if isinstance(error, Exception):
            self.tag("error", type=type(error).__name__)
        stats = self._sender.stats
        if self.id and (stats.dropped_events or stats.dropped_frames):
            dropped = {"dropped_events": stats.dropped_events, "dropped_frames": stats.dropped_frames}
            self._sender.add_event({"t_ms": self._journal.now_ms, "type": "log", "data": dropped})
        self._sender.close(self._patience_s)

    def _register_page(self, page: Any) -> "_PageHandle":
        self._names += 1
        handle = self._pages[page] = _PageHandle(page, f"p{self._names}")
        return handle

    async def _open_page(self, handle: "_PageHandle") -> None:
        """Begin to capture a page; one that was closed before it could be captured is a page that closed."""
        try:
            await self._capture_page(handle)
        except Exception:
            if handle.page.is_closed():
                self._record_closed_page(handle.page)
            raise

    async def _capture_page(self, handle: "_PageHandle") -> None:
        page = handle.page
        handle.listen("close", self._make_listener(self._record_closed_page, page))
        handle.listen("crash", self._make_listener(self._drop_page, page))
        session = await self._wait(page.context.new_cdp_session(page))
        handle.session = session

        async def send(method: str, params: dict[str, Any]) -> Mapping[str, Any]:
            answer: Mapping[str, Any] = await self._wait(session.send(method, params, timeout=_CALL_MS))
            return answer

        captured = CapturedPage(
            handle.name, send, self._journal, lambda frame: self._add_frame(handle, frame)
        )
        captured.on_settled = lambda: self._take_settled_frame(handle)
        captured.on_action = lambda: self._record_page_switch(page)
        handle.captured = captured
        for method in PROTOCOL_EVENTS:
            session.on(method, self._make_listener(captured.handle_event, method))
        for event, listener in (
            ("popup", self._make_listener(self._record_popup)),
            (
                "download",
                self._make_listener(lambda download: captured.add_download(download.suggested_filename)),
            ),
            (
                "request",
                self._make_listener(
                    lambda request: captured.add_request(
                        request.url, method=request.method, kind=request.resource_type
                    )
                ),
            ),
        ):
            handle.listen(event, listener)
        await captured.reader.open(listen=True)
        captured.add_opening(page.url, is_popup=page is not self._page)
        # Playwright calls a locator's handler before each action while the locator is visible: here always.
        locator = page.locator("html").first
        handle.locator = locator
        await self._wait(
            page.add_locator_handler(locator, self._make_action_handler(page, captured), no_wait_after=True)
        )

    def _make_action_handler(self, page: Any, captured: CapturedPage) -> Callable[[], Any]:
        if self._is_async:

            async def prepare() -> None:
                if self._is_open:
                    await self._guard(self._prepare_action_on_page(page, captured))

            return prepare

        def prepare_now() -> None:
            if self._is_open:
                run_sync_page_coroutine(self._guard(self._prepare_action_on_page(page, captured)))

        return prepare_now

    async def _prepare_action_on_page(self, page: Any, captured: CapturedPage) -> None:
        left = None if page is self._prepared else self._pages.get(self._prepared)
        self._prepared = page
        if left is not None and left.captured is not None:
            # What was typed there last is a step before those of this page.
            await self._flush_page(left.captured)
        await captured.prepare_action()

    def _make_listener(self, handle: Callable[..., None], *first: Any) -> Callable[..., None]:
        """Return a listener whose failures are counted and never reach the program."""

        def listen(*given: Any) -> None:
            if not self._is_open:
                return
            try:
                handle(*first, *given)
            except Exception as error:
                self._count_capture_failure(error)

        return listen

    def _record_popup(self, popup: Any) -> None:
        if len(self._pages) >= _MAX_PAGES:
            return
        handle = self._register_page(popup)
        url = self._journal.redact(popup.url)
        event = {"t_ms": self._journal.now_ms, "type": "tab_open", "url": url, "app": handle.app}
        self._journal.add_effect(event, {"type": "popup", "page": handle.name, "url": url})
        self._acting = popup
        self._start_listener_work(self._open_page(handle))

    def _record_closed_page(self, page: Any, *_: Any) -> None:
        handle = self._pages.pop(page, None)
        if handle is not None and page is not self._page:
            self._journal.add_step(handle.make_tab_event("tab_close", self._journal.now_ms))

    def _drop_page(self, page: Any, _: Any) -> None:
        """Remove a page that crashed: it answers nothing any more."""
        self._pages.pop(page, None)

    def _record_page_switch(self, page: Any) -> None:
        """Record that the actor has gone to another page, unless it was opened just before."""
        if page is self._acting or page not in self._pages:
            return
        self._acting = page
        handle = self._pages[page] = self._pages.pop(page)
        event = handle.make_tab_event("tab_switch", self._journal.now_ms)
        self._journal.add_step(event)
        self._send_held_frames(handle, event["t_ms"] + 1)

    def _is_acted_in(self, page: Any) -> bool:
        """Return whether a page is the one acted in last of those that are open."""
        return page is next(reversed(self._pages), None)

    def _take_settled_frame(self, handle: "_PageHandle") -> None:
        """Take a frame of a page at rest, unless the actor is in another one."""
        if handle.captured is not None and self._is_acted_in(handle.page):
            self._start_listener_work(handle.captured.take_frame())

    def _add_frame(self, handle: "_PageHandle", frame: CapturedFrame) -> None:
        """Send a frame, or hold it until the actor goes to its page.

        Otherwise it would be taken for what the last step in the other page led to.
        """
        if self._is_acted_in(handle.page):
            self._sender.add_frame(frame)
        else:
            handle.held_frames.append(frame)

    def _send_held_frames(self, handle: "_PageHandle", t_ms: int) -> None:
        while handle.held_frames:
            frame = handle.held_frames.popleft()
            frame.item["t_ms"] = t_ms
            self._sender.add_frame(frame)

    async def _finish(self) -> None:
        """Take the last frame of each page, first of the one acted in, and leave the pages as they were."""
        handles = [handle for handle in reversed(self._pages.values()) if not handle.page.is_closed()]
        for handle in handles:
            if handle.captured is not None and await self._flush_page(handle.captured):
                handle.is_responding = True
                await self._guard(self._take_last_frame(handle.page, handle.captured))
            self._send_held_frames(handle, self._journal.now_ms + 1)
        self._is_open = False
        for handle in handles:
            await self._guard(self._stop_capturing_page(handle))

    async def _flush_page(self, captured: CapturedPage) -> bool:
        """Let the page report what is pending, and return whether it responds."""
        try:
            await captured.reader.call("flush")
        except PageUnreadable:
            return True
        except Exception as error:
            self._count_capture_failure(error)
            return False
        return True

    async def _take_last_frame(self, page: Any, captured: CapturedPage) -> None:
        """Take a frame once the document has not changed for a moment, or after a few seconds."""
        until = time.monotonic() + _REST_S
        version, _ = await captured.read_document_version()
        while time.monotonic() < until:
            await self._wait(page.wait_for_timeout(_QUIET_S * 1000))
            now, is_loaded = await captured.read_document_version()
            if now == version and is_loaded:
                break
            version = now
        await captured.take_frame()

    async def _stop_capturing_page(self, handle: "_PageHandle") -> None:
        for event, listener in handle.listeners:
            handle.page.remove_listener(event, listener)
        # The calls below have no time limit: a page that crashed never answers.
        if not handle.is_responding:
            return
        if handle.locator is not None:
            await self._wait(handle.page.remove_locator_handler(handle.locator))
        if handle.session is not None:
            await self._wait(handle.session.detach())

    def _start_listener_work(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that a listener caused."""
        if not self._is_async:
            run_sync_page_coroutine(self._guard(work))
            return
        task = asyncio.ensure_future(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Awaitable[None]) -> None:
        """Run work; log and count its failure, unless the page went on or was closed in the meantime."""
        try:
            await work
        except PageUnreadable:
            _log.debug("A state of the page was not read", exc_info=True)
        except Exception as error:
            if _CLOSED.search(str(error)):
                _log.debug("A page was closed while it was read", exc_info=True)
            else:
                self._count_capture_failure(error)

    def _count_capture_failure(self, error: Exception) -> None:
        self._sender.stats.errors += 1
        # The text of an error may quote the page.
        _log.warning("The capture goes on after a failure: %s", type(error).__name__)
        _log.debug("Failure of the capture", exc_info=error)

    async def _wait(self, answer: Any) -> Any:
        """Return what a call of Playwright returns: sync pages have it already."""
        return await answer if self._is_async else answer


class _PageHandle:
    """A page with all that is attached to it, to be detached at the end."""

    def __init__(self, page: Any, name: str) -> None:
        self.page = page
        self.name = name
        #: `app` member of events of the page.
        self.app = {"name": "chromium", "page": name}
        #: Frames taken while the actor was in another page, the newest ones: no step needs the others.
        self.held_frames: deque[CapturedFrame] = deque(maxlen=_MAX_HELD_FRAMES)
        self.captured: CapturedPage | None = None
        #: False until the page answered at the end.
        self.is_responding = False
        self.session: Any = None
        self.locator: Any = None
        self.listeners: list[tuple[str, Callable[..., None]]] = []

    def listen(self, event: str, listener: Callable[..., None]) -> None:
        """Attach a listener to the page."""
        self.page.on(event, listener)
        self.listeners.append((event, listener))

    def make_tab_event(self, kind: str, t_ms: int) -> dict[str, Any]:
        """Return an event that names the page."""
        return {"t_ms": t_ms, "type": kind, "app": self.app, "data": {"page": self.name}}
