"""Process that holds the browser of one live replay, without secrets, and without rights beyond Chromium's.

Reads one command per line from standard input, as JSON, and answers each with one line. It ends with its
parent.
"""

import base64
import ctypes
import json
import os
import pwd
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import playwright
from playwright.sync_api import (
    Dialog,
    Page,
    Playwright,
    ProxySettings,
    Request,
    Response,
    sync_playwright,
)
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from recorder.capture.pictures import paint_over_areas
from recorder.live.browser_memory_limit import MemoryWatch
from recorder.live.browser_pages import BrowserPages
from recorder.live.document_reader import DocumentReader, load_reader_script
from recorder.live.playwright_actions import (
    find_playwright_area,
    find_playwright_drag_start,
    perform_drag,
    perform_playwright_action,
    try_playwright_click,
    was_action_sent,
)

_FLAGS = (
    "--proxy-bypass-list=<-loopback>",
    # The browser itself looks up no names: the proxy does.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-print-preview",
    "--disable-features=AutofillServerCommunication,OptimizationHints,MediaRouter,Translate",
    "--disable-dev-shm-usage",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-pings",
)
_DIE_WITH_PARENT = 1
_MOST_FILE_BYTES = 1 << 30
#: Memory of the browser's processes together, and the data of each one.
_MOST_MEMORY_BYTES, _MOST_DATA_BYTES = 2 << 30, 4 << 30
_OOM_SCORE = "800"
_JPEG_QUALITY = 60
_MOST_FAILED_PICTURES = 2
_MOST_PICTURE_BYTES = 4_000_000
_MOST_RECTS = 1_000
_MOST_EVENTS = 100
#: The page script reads a million characters; each may be written as six.
MOST_ANSWER_BYTES = 8_000_000


class BrowserProcessSession:
    """The browser with its one context, and what happened in it since the last command `perform`."""

    def __init__(self, driver: Playwright, script: str) -> None:
        self._driver = driver
        #: Reads a page as nodes.
        self._script = script
        #: Set by `open`, the first command.
        self._pages: BrowserPages
        self._reader: DocumentReader | None = None
        self._statuses: list[tuple[str, int]] = []
        self._failures: list[str] = []
        self._dialogs: list[dict[str, str]] = []
        self._expected_dialogs: list[bool] = []
        self._failed_pictures = 0

    def open(self, command: dict[str, Any]) -> dict[str, Any]:
        """Start the browser behind its proxy, with one empty page.

        The answer's `version` is None if the browser does not take the stored state.
        """
        browser = self._driver.chromium.launch(
            executable_path=command["executable"],
            headless=True,
            chromium_sandbox=not command["no_sandbox"],
            args=[*_FLAGS, *_make_browser_trust_flags(command["trusted_key"])],
            proxy=ProxySettings(
                server=command["server"],
                username=command["user"],
                password=command["password"],
                bypass="<-loopback>",
            ),
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
            timeout=command["timeout_ms"],
        )
        try:
            context = browser.new_context(
                viewport=command["viewport"],
                accept_downloads=False,
                service_workers="block",
                permissions=[],
                storage_state=command["state"],
            )
        except PlaywrightError:
            if command["state"] is None or not browser.is_connected():
                raise
            return {"version": None}  # the error may quote the state
        self._pages = BrowserPages(context)
        context.on("response", self._note_page_response)
        context.on("requestfailed", self._note_failed_page_load)
        context.on("dialog", self._answer_dialog)
        self._pages.get()
        return {"version": browser.version}

    def goto(self, command: dict[str, Any]) -> dict[str, Any]:
        """Open an address as if it were typed; the proxy decides whether it may be reached."""
        self._begin_action()
        if not command["url"].startswith(("http://", "https://")):
            return {"error": "only http and https are opened"}
        try:
            self._pages.get().goto(command["url"], timeout=command["timeout_ms"], wait_until="commit")
        except PlaywrightError as error:
            return {"error": _shorten_browser_error(error)}
        return {}

    def read(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return the page as nodes, and what happened since the last action."""
        page = self._pages.get()
        events = {
            "statuses": self._statuses,
            "failures": self._failures,
            "dialogs": self._dialogs,
            "pages": self._pages.opened,
        }
        try:
            return {**self._read_page(page), **events}
        except PlaywrightError as error:  # the page went away under it: the caller reads again
            self._reader = None
            return {
                "html": None,
                "url": page.url,
                "address": page.url,
                "error": _shorten_browser_error(error),
                **events,
            }

    def _read_page(self, page: Page) -> dict[str, Any]:
        if self._reader is not None and self._reader.page is page:
            try:
                return self._reader.read()
            except PlaywrightError:  # the document is another one
                self._reader = None
        self._reader = DocumentReader(page, page.main_frame.evaluate_handle(self._script))
        return self._reader.read()

    def name_element(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return the name of an element of the last `read`; None if its document went away."""
        with suppress(PlaywrightError):
            if self._reader is not None:
                return {"name": self._reader.name_element(command["index"])}
        return {"name": None}

    def perform(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do an action on an element of the last `read`, or on the page.

        The answer's `sent` is False where nothing reached the page, None where that is unknown.
        """
        self._begin_action()
        self._expected_dialogs = list(command["dialogs"])
        timeout, kind = command["timeout_ms"], command["type"]
        reader = self._reader
        if reader is None or reader.page is not self._pages.get():  # the verified page is closed
            return {"sent": False, "is_changed": True}
        page = reader.page
        try:
            element = None if command["index"] is None else reader.find_element(command["index"])
            drop = None if command["drop"] is None else reader.find_element(command["drop"])
            if element is not None and command["is_area"]:
                element, command["position"] = find_playwright_area(element)
            elif element is not None:
                element.scroll_into_view_if_needed(timeout=timeout)
                if kind in ("click", "dblclick", "check", "uncheck"):
                    command["position"] = try_playwright_click(element, command)
                elif kind == "drag" and drop is not None:
                    drop.hover(trial=True, timeout=timeout)  # nothing else covers it
                    element.hover(trial=True, timeout=timeout)
                elif kind in ("fill", "select", "upload"):
                    element.wait_for_element_state("enabled", timeout=timeout)
            if element is not None and not reader.is_unchanged(command["version"]):
                return {"sent": False, "is_changed": True}
            start = None if drop is None or element is None else find_playwright_drag_start(page, element)
        except PlaywrightError as error:
            return {"sent": False, "error": _shorten_browser_error(error)}
        try:
            if start is not None and drop is not None:
                perform_drag(page, start, drop, timeout)
            else:
                perform_playwright_action(page, element, command)
        except PlaywrightError as error:
            # A click that closes its popup has arrived: just before, nothing kept it from its element.
            if kind in ("click", "dblclick") and page.is_closed() and self._pages.is_any_acted_on:
                return {"sent": True}
            return {"sent": was_action_sent(page, command, error), "error": _shorten_browser_error(error)}
        return {"sent": True}

    def picture(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return a JPEG picture of the page of the last `read`, in which some elements are painted over.

        The answer's `data` is None if the page has changed since, or gives no picture in time.
        """
        nothing: dict[str, Any] = {"data": None, "rects": []}
        reader = self._reader
        if reader is None or reader.page.is_closed() or self._failed_pictures >= _MOST_FAILED_PICTURES:
            return nothing
        elements = [command["indices"], command["unread"]]
        try:
            before = reader.read_boxes(elements)
            data = reader.page.screenshot(
                type="jpeg", quality=_JPEG_QUALITY, caret="initial", timeout=command["timeout_ms"]
            )
            after = reader.read_boxes(elements)
        except PlaywrightTimeout:
            self._failed_pictures += 1
            return nothing
        except PlaywrightError:  # the page went away
            return nothing
        rects = [*before["rects"], *after["rects"]]
        is_same = before["version"] == after["version"] == command["version"]
        if not is_same or len(rects) > _MOST_RECTS:
            return nothing
        # What moves is painted over where it was before the picture, and where it is after it.
        scaled = [[round(number * before["scale"]) for number in rect] for rect in rects]
        if scaled:
            data = paint_over_areas(data, scaled, quality=_JPEG_QUALITY, format="JPEG")
        if len(data) > _MOST_PICTURE_BYTES:
            return nothing
        return {"data": base64.b64encode(data).decode(), "rects": scaled[: len(before["rects"])]}

    def switch_to_popups(self, command: dict[str, Any]) -> dict[str, Any]:
        """Choose the popups that were opened last to be acted on, as many as names; without names close all.

        A page that is or was acted on is not closed.
        """
        if command["names"]:
            self._pages.switch_to_opened(command["names"])
        else:
            self._pages.close_unexpected()
        return {}

    def name_page(self, command: dict[str, Any]) -> dict[str, Any]:
        """Give the page that is acted on its name in the recording, and take it from all others."""
        self._pages.name_first(command["name"])
        return {}

    def begin_tab_step(self, command: dict[str, Any]) -> dict[str, Any]:
        """Forget what pages loaded and which dialogs they opened; `dialogs` may follow."""
        self._forget_loads_and_dialogs()
        self._expected_dialogs = list(command["dialogs"])
        return {}

    def open_tab(self, command: dict[str, Any]) -> dict[str, Any]:
        """Open an empty page to be acted on."""
        self._pages.open(command["name"])
        return {}

    def switch_tab(self, command: dict[str, Any]) -> dict[str, Any]:
        """Choose a page to be acted on again; the answer's `is_done` is False if it is not open."""
        return {"is_done": self._pages.switch(command["name"])}

    def close_tab(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a page that a step closes; an open one is closed if the command orders it."""
        state = self._pages.close(command["name"], is_forced=command["is_forced"])
        return {"state": state, "is_loading": self._pages.is_loading}

    def pause(self, command: dict[str, Any]) -> dict[str, Any]:
        """Wait for some milliseconds, in which the page goes on."""
        page = self._pages.get()
        try:
            page.wait_for_timeout(command["ms"])
        except PlaywrightError:
            if not page.is_closed():
                raise
        return {}

    def _begin_action(self) -> None:
        self._forget_loads_and_dialogs()
        self._pages.begin_action()

    def _forget_loads_and_dialogs(self) -> None:
        self._statuses, self._failures, self._dialogs = [], [], []
        self._expected_dialogs = []

    def _note_page_response(self, response: Response) -> None:
        if len(self._statuses) < _MOST_EVENTS and _is_browser_page_load(response.request):
            self._statuses.append((response.url, response.status))

    def _note_failed_page_load(self, request: Request) -> None:
        if len(self._failures) < _MOST_EVENTS and _is_browser_page_load(request):
            self._failures.append(request.url)

    def _answer_dialog(self, dialog: Dialog) -> None:
        is_expected = bool(self._expected_dialogs)
        accepts = self._expected_dialogs.pop(0) if is_expected else dialog.type in ("alert", "beforeunload")
        if len(self._dialogs) < _MOST_EVENTS:
            kind = "expected" if is_expected else "unexpected"
            self._dialogs.append({"was": kind, "kind": dialog.type, "message": dialog.message[:1000]})
        if accepts:
            dialog.accept()
        else:
            dialog.dismiss()


def _make_browser_trust_flags(key_hash: str | None) -> list[str]:
    """Return the flag by which the browser trusts certificates with one key, where the proxy has one."""
    return [] if key_hash is None else [f"--ignore-certificate-errors-spki-list={key_hash}"]


def _is_browser_page_load(request: Request) -> bool:
    try:
        return request.is_navigation_request() and request.frame.parent_frame is None
    except PlaywrightError:
        return False


def _shorten_browser_error(error: PlaywrightError) -> str:
    return str(error).partition("\n")[0][:300]


def drop_privileges(user: str) -> None:
    """Change to another user for good, without its groups."""
    account = pwd.getpwnam(user)
    os.setgroups([])
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)


def main(user: str | None = None) -> None:
    """Answer commands until the parent closes the pipe or ends.

    Args:
        user: user to become before anything of a page is read. Python itself is started and imported as the
            user of the service: its files may be readable to that user alone.
    """
    script = load_reader_script()
    # If the machine runs out of memory, the kernel ends the browser before the service.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    if user is not None:
        drop_privileges(user)
    installed = Path(playwright.__file__)
    if not os.access(installed, os.R_OK):
        sys.exit(f"{PermissionError.__name__}: {installed}")
    # After the change of the user, which clears it.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE_BYTES, _MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_DATA_BYTES, _MOST_DATA_BYTES))
    watch = MemoryWatch(_MOST_MEMORY_BYTES)
    watch.start()
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    with sync_playwright() as driver:
        session = BrowserProcessSession(driver, script)
        for line in sys.stdin:
            command = json.loads(line)
            try:
                answer = getattr(session, command["do"])(command)
            except PlaywrightError as error:
                answer = {"lost": watch.describe() if watch.is_exceeded else str(error)[:2000]}
            text = json.dumps(answer)
            if len(text) > MOST_ANSWER_BYTES:  # beyond the limits of the page script: its page is hostile
                text = json.dumps({"lost": "The page sent more than a page may have."})
            answers.write(text + "\n")
            answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
