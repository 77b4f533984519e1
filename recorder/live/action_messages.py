"""Actions of recorded events, as the browser's process takes them. Spec §4.6."""

from collections.abc import Mapping
from typing import Any

from recorder.live.upload_files import make_upload_files
from recorder.replays.dom import DomElement
from recorder.replays.recorded_session import RecordedEvent, find_recorded_input_name

#: Events that need nothing to be done.
NOTHING_TO_DO = frozenset(("window_focus", "copy"))
#: Actions that the live sandbox performs, beside opening an address.
PERFORMED = frozenset(
    (
        "click", "dblclick", "fill", "select", "check", "uncheck", "press", "hover", "focus", "scroll",
        "upload", "drag",
    )
)  # fmt: skip
#: Those that need an element.
ON_ELEMENTS = PERFORMED - {"press", "scroll"}
_BUTTONS = {0: "left", 1: "middle", 2: "right"}
_MODIFIERS = ((1, "Alt"), (2, "Control"), (4, "Meta"), (8, "Shift"))


def make_action_message(
    event: RecordedEvent, inputs: Mapping[str, str], element: DomElement | None
) -> dict[str, Any]:
    """Return the arguments with which the browser performs an event.

    Args:
        event: the item, of a type in `PERFORMED`.
        inputs: values of masked inputs.
        element: the verified element of the page, where the event has one.
    """
    given = event.get("input") or {}
    name = find_recorded_input_name(event)
    value = given.get("value") if name is None else inputs[name]
    if event["type"] == "fill":
        value = "" if value is None else str(value)
    elif event["type"] == "select":
        value = [str(option) for option in value] if isinstance(value, list) else [str(value or "")]
    elif event["type"] == "upload":
        value = [file.to_browser() for file in make_upload_files(given, value)] if value else []
    return {
        "type": event["type"],
        "value": value,
        "key": _name_action_key(given),
        "button": _BUTTONS.get(given.get("button") or 0, "left"),
        "modifiers": _name_action_modifiers(given),
        "is_area": element is not None and element.tag == "area" and event["type"] in ("click", "dblclick"),
        "needs_point": element is not None and _needs_action_point(element),
        "point": _find_action_point(event),
        "delta": list(given.get("delta") or (0, 0)),
        "dialogs": list_dialog_answers(event),
    }


def list_dialog_answers(event: RecordedEvent) -> list[bool]:
    """Return whether each dialog that an event opened was accepted."""
    return [bool(signal.get("accepted", True)) for signal in list_action_signals(event, "dialog")]


def list_action_signals(event: RecordedEvent, type: str) -> list[Mapping[str, Any]]:
    """Return the signals of one type that an event caused."""
    return [signal for signal in event.get("signals") or () if signal.get("type") == type]


def _name_action_key(given: Mapping[str, Any]) -> str | None:
    key = given.get("key")
    if not key:
        return None
    return "+".join([*_name_action_modifiers(given), str(key)])


def _name_action_modifiers(given: Mapping[str, Any]) -> list[str]:
    return [name for bit, name in _MODIFIERS if int(given.get("modifiers") or 0) & bit]


def _needs_action_point(element: DomElement) -> bool:
    """Return whether a click on the element means something else at each of its points."""
    match element.tag:
        case "canvas":
            return True
        case "img":
            return element.read_attribute("usemap") is not None
        case "input":
            return (element.read_attribute("type") or "").lower() == "image"
    return False


def _find_action_point(event: RecordedEvent) -> list[float] | None:
    """Return where in its element an event was, and the element's size; None if the recording lacks it."""
    point, rect = (event.get("input") or {}).get("point"), (event.get("target") or {}).get("rect")
    if not point or not rect:
        return None
    left, top, width, height = rect
    x, y = point[0] - left, point[1] - top
    is_inside = width > 0 and height > 0 and 0 <= x <= width and 0 <= y <= height
    return [x, y, width, height] if is_inside else None
