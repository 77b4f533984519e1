"""Reader of a live page: its state as snapshot nodes, through a JavaScript world that the page cannot reach.

Chromium only: the world is made by its DevTools protocol.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import orjson

from recorder import limits

#: Sends a method of the DevTools protocol with parameters, and returns its result.
Send = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]
#: Name of the JavaScript world; the page's own is without a name.
WORLD = "recorder"
#: Function of that world with which it sends texts to `Runtime.bindingCalled`.
BINDING = "recorderSend"
_PARTS = [files("recorder.capture").joinpath(name).read_text("utf-8") for name in ("page.js", "actions.js")]
#: Defines `recorderPage` in the world, once for each document.
PAGE_SCRIPT = f'globalThis.recorderPage ??= (() => {{\n"use strict";\n{"".join(_PARTS)}}})();'
#: Visible depth of a snapshot; page.js keeps it below.
_MAX_DEPTH = 64
_MAX_BOXES = 100
_GONE = re.compile("context|navigated|closed|detached|crashed|active page", re.IGNORECASE)
_URL_CHARACTERS = 2_000
_TITLE_CHARACTERS = 300


class PageUnreadable(Exception):
    """The page cannot be read now: it navigates, is closed, or answers with something else than its state."""


@dataclass(frozen=True)
class PageReading:
    """State of a page at one moment."""

    #: Equal for two readings between which nothing changed.
    version: str
    url: str
    title: str
    #: `dom` member of a frame: `{"v": 1, "format": "nodes", "html": [...]}`.
    dom: dict[str, Any]
    #: Rectangles `[x, y, width, height]` of masked elements in view, in CSS pixels of the viewport.
    masked_rects: tuple[tuple[int, int, int, int], ...]
    viewport: tuple[int, int]
    #: Device pixels of a CSS pixel.
    scale: float
    #: True if the page was too large to be read whole.
    truncated: bool
    #: True once the document and what it refers to were loaded.
    is_loaded: bool


class PageReader:
    """Reader of one page over a DevTools session of its own.

    `handle_event` needs the session's events `Runtime.executionContextCreated` and
    `Runtime.executionContextsCleared`.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        #: Id of the main frame.
        self.frame_id = ""
        self._context: tuple[int, str] | None = None

    async def send(self, method: str, params: dict[str, Any]) -> Mapping[str, Any]:
        """Send a method of the DevTools protocol, and return its result.

        Raises:
            PageUnreadable: if the page navigates or is closed.
        """
        try:
            return await self._send(method, params)
        except Exception as error:
            # Errors of the protocol have a text alone.
            if _GONE.search(str(error)):
                raise PageUnreadable("The page has gone to another document, or is closed.") from error
            raise

    async def open(self, *, listen: bool = False) -> None:
        """Install the page script in the present document and in all that follow.

        Args:
            listen: whether actions in the page are sent to the binding.
        """
        tree = await self.send("Page.getFrameTree", {})
        self.frame_id = str(tree["frameTree"]["frame"]["id"])
        await self.send("Page.enable", {})
        await self.send("Runtime.enable", {})
        source = f"if (window === top) {{\n{PAGE_SCRIPT}\n"
        if listen:
            await self.send("Runtime.addBinding", {"name": BINDING, "executionContextName": WORLD})
            source += f"recorderPage.listen({BINDING});\n"
        await self.send(
            "Page.addScriptToEvaluateOnNewDocument",
            {"source": source + "}", "worldName": WORLD, "runImmediately": True},
        )

    def handle_event(self, method: str, params: Mapping[str, Any]) -> None:
        """Keep track of the JavaScript world of the main frame."""
        if method == "Runtime.executionContextsCleared":
            self._context = None
        elif method == "Runtime.executionContextCreated":
            context = params["context"]
            if (
                context.get("name") == WORLD
                and (context.get("auxData") or {}).get("frameId") == self.frame_id
            ):
                self._context = (int(context["id"]), str(context["uniqueId"]))

    def is_own_context(self, context_id: object) -> bool:
        """Return whether a message comes from the page script of the main frame."""
        return self._context is not None and self._context[0] == context_id

    async def call(self, function: str) -> Any:
        """Return the JSON that a function of the page script returns.

        Raises:
            PageUnreadable: if the page navigates or answers with something else.
        """
        if self._context is None:
            raise PageUnreadable("The page has no document yet.")
        answer = await self.send(
            "Runtime.evaluate",
            {
                "expression": f"recorderPage.{function}()",
                "uniqueContextId": self._context[1],
                "returnByValue": True,
            },
        )
        text = (answer.get("result") or {}).get("value")
        if "exceptionDetails" in answer or not isinstance(text, str):
            raise PageUnreadable("The page script failed.")
        return decode_page_json(text)

    async def read(self) -> PageReading:
        """Return the state of the page.

        Raises:
            PageUnreadable: if the page navigates or its state is not valid.
        """
        return parse_page_reading(await self.call("read"))


def decode_page_json(text: str) -> Any:
    """Return the value of a JSON text from the page.

    Raises:
        PageUnreadable: if it is too long or no JSON.
    """
    if len(text) > limits.DOM_BYTES:
        raise PageUnreadable("The page sent more than a snapshot may have.")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise PageUnreadable("The page sent something else than JSON.") from error


def parse_page_reading(value: Any) -> PageReading:
    """Return the state that the page script describes.

    Raises:
        PageUnreadable: if a member is missing, of another type or too large.
    """
    try:
        html, boxes, viewport = value["html"], value["boxes"], value["viewport"]
        if not isinstance(html, list) or _is_page_too_deep(html):
            raise PageUnreadable("The page sent a snapshot that is nested too deep.")
        return PageReading(
            version=str(value["version"])[:100],
            url=str(value["url"])[:_URL_CHARACTERS],
            title=str(value["title"])[:_TITLE_CHARACTERS],
            dom={"v": 1, "format": "nodes", "html": html},
            masked_rects=parse_page_boxes(boxes),
            viewport=(_parse_pixels(viewport[0]), _parse_pixels(viewport[1])),
            scale=min(8.0, max(0.25, float(value["scale"]))),
            truncated=bool(value["truncated"]),
            is_loaded=value["ready"] == "complete",
        )
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise PageUnreadable("The page sent something else than its state.") from error


def parse_page_boxes(value: Any) -> tuple[tuple[int, int, int, int], ...]:
    """Return rectangles that the page's script sent, in whole pixels.

    Raises:
        TypeError, ValueError, OverflowError: if one is no rectangle, or they are too many.
    """
    if len(value) > _MAX_BOXES:
        raise ValueError("A page has fewer rectangles.")
    boxes = []
    for box in value:
        left, top, width, height = (_parse_pixels(number) for number in box)
        boxes.append((left, top, width, height))
    return tuple(boxes)


def _parse_pixels(number: Any) -> int:
    """Return a number of pixels that the page's script sent, within bounds."""
    if type(number) not in (int, float):
        raise TypeError("A number of pixels is expected.")
    return max(-1_000_000, min(1_000_000, int(number)))


def _is_page_too_deep(html: list[Any]) -> bool:
    level = [html]
    for _ in range(_MAX_DEPTH - 4):
        level = [child for node in level for child in node if type(child) is list]
        if not level:
            return False
    return True
