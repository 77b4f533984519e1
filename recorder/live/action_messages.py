"""Actions of recorded events, as the browser's process takes them. Spec §4.6."""

from collections.abc import Mapping
from typing import Any

from recorder.live.upload_files import make_upload_files
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


def make_action_message(event: RecordedEvent, inputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments with which the browser performs an event.

    Args:
        event: the item, of a type in `PERFORMED`.
        inputs: values of masked inputs.
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
        "delta": list(given.get("delta") or (0, 0)),
        "dialogs": [_is_dialog_accepted(signal) for signal in list_action_signals(event, "dialog")],
    }


def list_action_signals(event: RecordedEvent, type: str) -> list[Mapping[str, Any]]:
    """Return the signals of one type that an event caused."""
    return [signal for signal in event.get("signals") or () if signal.get("type") == type]


def _name_action_key(given: Mapping[str, Any]) -> str | None:
    key = given.get("key")
    if not key:
        return None
    pressed = [name for bit, name in _MODIFIERS if int(given.get("modifiers") or 0) & bit]
    return "+".join([*pressed, str(key)])


def _is_dialog_accepted(signal: Mapping[str, Any]) -> bool:
    return bool(signal.get("accepted", True))
