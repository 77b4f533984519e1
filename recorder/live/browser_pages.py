"""Pages of the browser of a live replay: their names in the recording, and the one that is acted on."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from playwright.sync_api import BrowserContext, Page, Request
from playwright.sync_api import Error as PlaywrightError

#: State of a page that a step closes. `last` is the only one that is acted on; it stays open.
TabState = Literal["open", "closed", "last", "unknown"]


class BrowserPages:
    """The pages of one browser context."""

    def __init__(self, context: BrowserContext) -> None:
        self._context = context
        #: Pages that are open, the newest last.
        self._open: list[Page] = []
        #: Those among them that are or were acted on: the last one is, and the one before it was before it.
        self._acting: list[Page] = []
        #: Pages that were opened since the last action, and are not acted on; some may be closed.
        self._opened: list[Page] = []
        #: Pages by their name in the recording; closed ones keep theirs.
        self._names: dict[str, Page] = {}
        #: Pages that closed themselves since the last action began, without a step that says so yet.
        self._closed: list[Page] = []
        #: The page in which the last step was done; it may be closed.
        self._last: Page | None = None
        #: Requests since the last action began that have no answer yet.
        self._requests: set[Request] = set()
        context.on("page", self._add_opened_page)
        context.on("request", lambda request: self._requests.add(request))
        context.on("requestfinished", lambda request: self._requests.discard(request))
        context.on("requestfailed", lambda request: self._requests.discard(request))

    @property
    def opened(self) -> int:
        """Number of pages that were opened since the last action, and are not acted on."""
        return len(self._opened)

    @property
    def is_any_acted_on(self) -> bool:
        """Return whether a page that is or was acted on is open."""
        return bool(self._acting)

    @property
    def is_loading(self) -> bool:
        """Return whether a request that was sent since the last action began has no answer yet."""
        return bool(self._requests)

    def get(self) -> Page:
        """Return the page that is acted on; where all of these closed, the newest one, or an empty one."""
        if not self._acting:
            page = self._open[-1] if self._open else self._context.new_page()
            self._acting.append(page)
            if page in self._opened:
                self._opened.remove(page)
        return self._acting[-1]

    def begin_action(self) -> None:
        """Forget what happened before the action that begins."""
        self._opened, self._closed, self._requests = [], [], set()
        self._last = self.get()

    def name_first(self, name: str | None) -> None:
        """Name the page that is acted on as the only one with a name, since the replay begins in it."""
        self._names = {} if name is None else {name: self.get()}

    def switch_to_opened(self, names: Sequence[str | None]) -> None:
        """Choose the pages that were opened last to be acted on, and name them, the oldest first."""
        for page, name in zip(self._opened[-len(names) :], names, strict=True):
            (self._closed if page.is_closed() else self._acting).append(page)
            if name is not None:
                self._names[name] = page
            self._last = page
        del self._opened[-len(names) :]
        self._show()

    def open(self, name: str | None) -> None:
        """Open an empty page to be acted on, and name it."""
        page = self._context.new_page()
        if page in self._opened:
            self._opened.remove(page)
        self._acting.append(page)
        if name is not None:
            self._names[name] = page
        self._last = page

    def close_unexpected(self) -> None:
        """Close the pages that are and were not acted on."""
        for page in [page for page in self._open if page not in self._acting]:
            with suppress(PlaywrightError):  # it closed itself
                page.close()

    def switch(self, name: str | None) -> bool:
        """Choose a page that was acted on before to be acted on again; return whether it is open.

        Args:
            name: its name; None for the only other one than that of the last step.
        """
        if name is None:
            others = [page for page in self._acting if page is not self._last]
            page = others[0] if len(others) == 1 else None
        else:
            page = self._names.get(name)
        if page is None or page not in self._acting:
            return False
        self._acting.remove(page)
        self._acting.append(page)
        self._last = page
        self._show()
        return True

    def close(self, name: str | None, *, is_forced: bool) -> TabState:
        """Take a page away that a step closes, and return what became of it.

        Args:
            name: its name; None for the page that closed itself since the last action began, or else the one
                that is acted on.
            is_forced: whether a page that is still open is closed now; else it stays.
        """
        unnamed = self._closed[-1] if self._closed else self.get()
        page = unnamed if name is None else self._names.get(name)
        if page is None:
            return "unknown"
        if page in self._acting:
            if len(self._acting) == 1:
                return "last"
            if not is_forced:
                return "open"
            with suppress(PlaywrightError):  # it closed itself
                page.close()
            self._remove_closed_page(page)
        if page in self._closed:
            self._closed.remove(page)
        self._show()
        return "closed"

    def _show(self) -> None:
        """Bring the page that is acted on to the front."""
        with suppress(PlaywrightError):  # it closed itself
            self.get().bring_to_front()

    def _add_opened_page(self, page: Page) -> None:
        self._open.append(page)
        self._opened.append(page)
        page.on("close", self._remove_closed_page)

    def _remove_closed_page(self, page: Page) -> None:
        if page in self._open:
            self._open.remove(page)
        if page in self._acting:
            self._acting.remove(page)
            self._closed.append(page)
