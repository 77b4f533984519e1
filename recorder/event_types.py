"""The one table of known event types: class, action or not, position in a path. Contract §3 (event item).

The set of types is open: an unknown one is stored, exported, and taken for a step of the customer's own work.
"""

from dataclasses import dataclass
from typing import Literal

EventClass = Literal["user", "script", "agent", "raw", "system", "other"]


@dataclass(frozen=True, slots=True)
class EventTypeTraits:
    """Class of the events of one type."""

    event_class: EventClass
    #: Counted in `actions`: something a person or an agent did.
    is_action: bool
    #: Stands in paths of the memory graph; echoes and telemetry do not.
    is_step: bool


_USER = (
    "navigate click dblclick hover fill select check uncheck press scroll drag upload download dialog "
    "tab_open tab_close tab_switch window_focus focus copy paste"
)
_RAW = "pointer_move pointer_down pointer_up key_down key_up key_press"
#: Type that a run of key strokes becomes in a path.
TYPING = "type"

EVENT_TYPES: dict[str, EventTypeTraits] = {
    **dict.fromkeys(_USER.split(), EventTypeTraits("user", is_action=True, is_step=True)),
    **dict.fromkeys(("wait", "assert", "extract"), EventTypeTraits("script", is_action=False, is_step=True)),
    "tool_call": EventTypeTraits("agent", is_action=True, is_step=True),
    **dict.fromkeys(("llm_call", "message"), EventTypeTraits("agent", is_action=False, is_step=True)),
    # What an agent thinks or gets back accompanies the call before or after it.
    **dict.fromkeys(
        ("tool_result", "thought", "observation"), EventTypeTraits("agent", is_action=False, is_step=False)
    ),
    **dict.fromkeys(_RAW.split(), EventTypeTraits("raw", is_action=False, is_step=False)),
    **dict.fromkeys(("error", "success", "custom"), EventTypeTraits("system", is_action=False, is_step=True)),
    # A change of screen shows in the screen of the next step.
    **dict.fromkeys(
        ("log", "console", "request", "screen_change"),
        EventTypeTraits("system", is_action=False, is_step=False),
    ),
}
_UNKNOWN = EventTypeTraits("other", is_action=False, is_step=True)

_MODIFIER_KEYS = frozenset({"Alt", "AltGraph", "Control", "Meta", "Shift", "CapsLock"})
_HOTKEY_MODIFIERS = 1 | 2 | 4  # Alt, Ctrl, Meta; Shift alone only makes capitals


def find_event_type_traits(name: str) -> EventTypeTraits:
    """Return the traits of a type of events; those of an unknown type by default."""
    return EVENT_TYPES.get(name, _UNKNOWN)


def is_action(name: str) -> bool:
    """Return whether events of this type count as user or agent actions."""
    return find_event_type_traits(name).is_action


def step_type(name: str, *, key: str | None = None, modifiers: int = 0) -> str | None:
    """Return the type that an event has in a path; None if paths leave it out.

    Key strokes become `type`: consecutive ones on one element are one step. So do single characters that a
    recorder reports as `press`; named keys and hotkeys stay what they are.

    Args:
        name: type of the event.
        key: name of the key, as in `input.key`.
        modifiers: bit mask Alt 1, Ctrl 2, Meta 4, Shift 8.
    """
    if name == "key_down":
        # Held alone, a modifier types nothing; the stroke it belongs to follows.
        return None if key in _MODIFIER_KEYS else TYPING
    if name == "press" and key is not None and len(key) == 1 and not modifiers & _HOTKEY_MODIFIERS:
        return TYPING
    return name if find_event_type_traits(name).is_step else None
