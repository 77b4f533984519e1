"""Reader of one document in the browser of a live replay: nodes, elements, rectangles, and its address.

It uses the page script of `recorder.capture`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, cast

from playwright.sync_api import ElementHandle, JSHandle, Page
from playwright.sync_api import Error as PlaywrightError

#: Second part of the page script: snapshots as `capture` makes them, with the element of each node. Here the
#: script runs in the page's own JavaScript world, as Playwright's elements do, so a page can change what it
#: returns. Whatever protects inputs from other sites therefore comes from the browser: see `address`.
_READER = """
observe(document);
const fingerprint = () => version().split(".").slice(0, 3).join(".");
const names = new WeakMap();
let taken = null, named = 0;
return {
  read() { taken = take(); return { ...describe(taken), version: fingerprint() }; },
  version: fingerprint,
  element: (index) => taken.snapshot.elements[index],
  // A name that no other element of any document has.
  name(index) {
    const element = taken.snapshot.elements[index];
    if (!names.has(element)) names.set(element, `${documentId}.${named += 1}`);
    return names.get(element);
  },
  // Rectangles of masked elements, of those at some positions, and of others that show a picture or a text.
  boxes(indices, unread) {
    const isShown = (element) => localName(element) !== "svg" || /\\S/.test(element.textContent);
    const elements = [...indices.map((index) => taken.snapshot.elements[index]),
      ...unread.map((index) => taken.snapshot.elements[index]).filter(isShown)];
    const rects = elements.filter((element) => nodeType(element) === 1).map(rectOf);
    return { version: fingerprint(), scale: devicePixelRatio,
      rects: [...take().snapshot.boxes, ...rects].filter(([, , width, height]) => width > 0 && height > 0) };
  },
};
"""


def load_reader_script() -> str:
    """Return the script that makes the reader of a document."""
    page_script = files("recorder.capture").joinpath("page.js").read_text("utf-8")
    return f'() => {{\n"use strict";\n{page_script}{_READER}}}'


@dataclass
class DocumentReader:
    """The page script in one document of a page; its methods raise an error once that is another one."""

    page: Page
    script: JSHandle
    #: Address at the last reading, as the browser has it.
    address: str = ""

    def read(self) -> dict[str, Any]:
        """Return the document as nodes, its version, and the address that the browser has."""
        read = dict(self.script.evaluate("reader => reader.read()"))
        # After the reading: the script goes with its document, so the address is not one of an earlier page.
        self.address = self.page.url
        return {**read, "address": self.address}

    def find_element(self, index: int) -> ElementHandle:
        """Return the element of a node of the last reading."""
        handle = self.script.evaluate_handle("(reader, index) => reader.element(index)", index)
        element = handle.as_element()
        if element is None:
            raise PlaywrightError("the element went away")
        frame = element.owner_frame()
        if frame is None or frame == self.page.main_frame:
            return element
        # Playwright takes the points of an element for those of the frame in whose JavaScript it was found.
        return cast(ElementHandle, frame.evaluate_handle("element => element", element).as_element())

    def name_element(self, index: int) -> str:
        """Return the name of an element of the last reading, which it keeps as long as its document."""
        return str(self.script.evaluate("(reader, index) => reader.name(index)", index))

    def is_unchanged(self, version: str | None) -> bool:
        """Return whether the document has a version, where one is given, and its site is the one read."""
        is_same_site = _find_page_origin(self.page.url) == _find_page_origin(self.address)
        return is_same_site and version in (None, self.script.evaluate("reader => reader.version()"))

    def read_boxes(self, elements: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Return the rectangles of the masked elements and of the elements at these positions."""
        return dict(self.script.evaluate("(reader, elements) => reader.boxes(...elements)", elements))


def _find_page_origin(url: str) -> list[str]:
    return url.split("/", 3)[:3]
