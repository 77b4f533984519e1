"""Actions in the page of a live replay, as Playwright performs them. Spec §4.6."""

import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from playwright.sync_api import ElementHandle, Error, FilePayload, Page, Position

#: Libraries begin a drag after some pixels, and want to see a move on the element on which it ends.
_DRAG_STEPS, _FIRST_PIXELS = 5, 6

#: Finds the image of an area, and the place in it that is next to the middle of what is seen of the area.
_FIND_AREA = """area => {
  const root = area.getRootNode(), name = area.closest("map")?.name;
  const image = [...root.querySelectorAll("img[usemap]")].find((shown) => shown.useMap === `#${name}`);
  if (!name || !image) return null;
  image.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
  const box = image.getBoundingClientRect();
  const step = Math.max(2, Math.ceil(Math.sqrt(box.width * box.height / 20000))), places = [];
  for (let y = 1; y < box.height; y += step) {
    for (let x = 1; x < box.width; x += step) {
      if (root.elementFromPoint(box.left + x, box.top + y) === area) places.push([x, y]);
    }
  }
  if (!places.length) return null;
  const middle = [0, 1].map((axis) => places.reduce((sum, place) => sum + place[axis], 0) / places.length);
  const distance = ([x, y]) => Math.hypot(x - middle[0], y - middle[1]);
  const [x, y] = places.reduce((best, place) => (distance(place) < distance(best) ? place : best));
  return { image, x: x - image.clientLeft, y: y - image.clientTop };
}"""


def find_playwright_area(area: ElementHandle) -> tuple[ElementHandle, Position]:
    """Return the image of an area, scrolled into view, and a position in it where a click hits the area.

    Raises:
        playwright.sync_api.Error: if no image shows the area, or something covers it.
    """
    visible = area.evaluate_handle(_FIND_AREA)
    if visible.evaluate("visible => visible === null"):
        raise Error("the page does not show the area")
    image = visible.get_property("image").as_element()
    assert image is not None
    x, y = visible.evaluate("visible => [visible.x, visible.y]")
    return image, Position(x=x, y=y)


def try_playwright_click(element: ElementHandle, command: Mapping[str, Any]) -> Position | None:
    """Check that the page would take a click; return the position in it, None for the middle.

    Raises:
        playwright.sync_api.Error: if it would not, or if the position matters and is not recorded.
    """
    position = _find_playwright_click_position(element, command) if command["needs_point"] else None
    element.click(trial=True, timeout=command["timeout_ms"], position=position)
    return position


def perform_playwright_action(page: Page, element: ElementHandle | None, command: Mapping[str, Any]) -> None:
    """Do the action of a command on an element, or on the page where it needs none.

    Raises:
        playwright.sync_api.Error: if the page does not take the action within `timeout_ms` of the command.
    """
    timeout, value = command["timeout_ms"], command["value"]
    match command["type"]:
        case "click" | "dblclick" if element is not None:
            element.click(
                timeout=timeout,
                click_count=2 if command["type"] == "dblclick" else 1,
                button=command["button"],
                modifiers=command["modifiers"],
                position=command["position"],
                # Playwright looks for the image itself at a place where its area is.
                force=command["is_area"],
                no_wait_after=True,
            )
        case "fill" if element is not None:
            element.fill(value, timeout=timeout)
        case "upload" if element is not None:
            element.set_input_files([_make_playwright_file(file) for file in value], timeout=timeout)
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


def was_action_sent(page: Page, command: Mapping[str, Any], error: Error) -> bool | None:
    """Return False if an action failed before it reached the page; None if that is unknown.

    A key that the browser does not know is not pressed. Its modifiers are, before it: they are released here,
    since they would change later clicks and keys.
    """
    if command["type"] != "press" or "Unknown key" not in str(error):
        return None
    with suppress(Error):  # the page is closed
        for modifier in command["modifiers"]:
            page.keyboard.up(modifier)
    return None if command["modifiers"] else False


def find_playwright_drag_start(page: Page, source: ElementHandle) -> Position:
    """Return the middle of the element that a drag begins on.

    Raises:
        playwright.sync_api.Error: if the page does not show it.
    """
    point = _find_playwright_element_middle(page, source)
    if point is None:
        raise Error("the page does not show the element that is dragged")
    return point


def perform_drag(page: Page, start: Position, drop: ElementHandle, timeout: float) -> None:
    """Move from a point to the middle of an element, scrolled into view, with the button pressed.

    Raises:
        playwright.sync_api.Error: if the page does not show that element; the button is not released.
    """
    page.mouse.move(start["x"], start["y"])
    page.mouse.down()
    end = _find_playwright_element_middle(page, drop)
    if end is None:
        # The drag begins on its element, before that is scrolled away.
        page.mouse.move(start["x"] + _FIRST_PIXELS, start["y"] + _FIRST_PIXELS, steps=2)
        drop.scroll_into_view_if_needed(timeout=timeout)
        end = _find_playwright_element_middle(page, drop)
    if end is None:
        raise Error("the page does not show the element on which the drag ends")
    page.mouse.move(end["x"], end["y"], steps=_DRAG_STEPS)
    page.mouse.move(end["x"], end["y"])  # the element below may have changed on the way
    page.mouse.up()


def _find_playwright_click_position(element: ElementHandle, command: Mapping[str, Any]) -> Position:
    box = element.bounding_box()
    if command["point"] is None or box is None:
        raise Error("the element needs the point of the click, which the recording lacks")
    x, y, width, height = command["point"]
    # Recorded sizes are whole pixels.
    if abs(box["width"] - width) >= 1 or abs(box["height"] - height) >= 1:
        x, y = x * box["width"] / width, y * box["height"] / height
    # Playwright counts from the inner edge of the border.
    left, top = element.evaluate("element => [element.clientLeft, element.clientTop]")
    return Position(x=min(x, box["width"] - 1) - left, y=min(y, box["height"] - 1) - top)


def _find_playwright_element_middle(page: Page, element: ElementHandle) -> Position | None:
    """Return the middle of an element; None if the page does not show it."""
    box, size = element.bounding_box(), page.viewport_size
    if box is None or size is None:
        return None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    return Position(x=x, y=y) if 0 <= x < size["width"] and 0 <= y < size["height"] else None


def _make_playwright_file(value: dict[str, str]) -> FilePayload:
    return FilePayload(name=value["name"], mimeType=value["type"], buffer=base64.b64decode(value["content"]))
