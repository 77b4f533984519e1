"""Actions in the page of a live replay, as Playwright performs them. Spec §4.6."""

import base64
from collections.abc import Mapping
from typing import Any

from playwright.sync_api import ElementHandle, Error, FilePayload, Page, Position

#: Libraries begin a drag after some pixels, and want to see a move on the element on which it ends.
_DRAG_STEPS = 5


def perform_action(page: Page, element: ElementHandle | None, command: Mapping[str, Any]) -> None:
    """Do the action of a command on an element, or on the page where it needs none.

    Raises:
        playwright.sync_api.Error: if the page does not take the action within `timeout_ms` of the command.
    """
    timeout, value = command["timeout_ms"], command["value"]
    match command["type"]:
        case "click" | "dblclick" if element is not None:
            count = 2 if command["type"] == "dblclick" else 1
            button = command["button"]
            element.click(timeout=timeout, click_count=count, button=button, no_wait_after=True)
        case "fill" if element is not None:
            element.fill(value, timeout=timeout)
        case "upload" if element is not None:
            element.set_input_files([_make_file(file) for file in value], timeout=timeout)
        case "select" if element is not None:
            element.select_option(value, timeout=timeout)
        case "check" | "uncheck" if element is not None:
            element.set_checked(command["type"] == "check", timeout=timeout)
        case "hover" if element is not None:
            element.hover(timeout=timeout)
        case "focus" if element is not None:
            element.focus()
        case "press" if element is not None:
            element.press(command["key"], timeout=timeout, no_wait_after=True)
        case "press":
            page.keyboard.press(command["key"])
        case "scroll":
            page.mouse.wheel(*command["delta"])


def find_drag_path(page: Page, source: ElementHandle, drop: ElementHandle) -> tuple[Position, Position]:
    """Return the middles of two elements, both of which the page shows.

    Raises:
        playwright.sync_api.Error: if the page shows one of them alone.
    """
    size = page.viewport_size
    points = []
    for element in (source, drop):
        box = element.bounding_box()
        if box is not None:
            points.append(Position(x=box["x"] + box["width"] / 2, y=box["y"] + box["height"] / 2))
    if size is None or len(points) < 2:
        raise Error("an element of the drag is not shown")
    if not all(0 <= point["x"] < size["width"] and 0 <= point["y"] < size["height"] for point in points):
        raise Error("the page does not show both elements of the drag at once")
    return points[0], points[1]


def drag(page: Page, path: tuple[Position, Position]) -> None:
    """Move from one point to another with the button pressed, in steps that pages notice."""
    start, end = path
    page.mouse.move(start["x"], start["y"])
    page.mouse.down()
    page.mouse.move(end["x"], end["y"], steps=_DRAG_STEPS)
    page.mouse.move(end["x"], end["y"])  # the element below may have changed on the way
    page.mouse.up()


def _make_file(value: dict[str, str]) -> FilePayload:
    return FilePayload(name=value["name"], mimeType=value["type"], buffer=base64.b64decode(value["content"]))
