"""Consequential steps: those that a replay does not repeat without an order. Spec §4.6."""

import re
from bisect import bisect_left
from collections.abc import Collection
from typing import Any

from recorder.memory.steps.action_tokens import find_acted_role
from recorder.replays.recorded_session import RecordedEvent, RecordedSession

#: A tag of this name marks the event that it anchors.
CONSEQUENTIAL_TAG = "consequential"
_ACTING_TYPES = frozenset(("click", "dblclick", "press", "tool_call", "drag", "upload", "dialog"))
_SUBMITTING_KEYS = frozenset(("Enter", "NumpadEnter"))
_ACTIVATING_KEYS = _SUBMITTING_KEYS | {" ", "Space"}
_ACTIVATED_ROLES = frozenset(("button", "link", "menuitem"))
#: Methods of requests that change something on the server.
CHANGING_METHODS = frozenset(("POST", "PUT", "PATCH", "DELETE"))
_SINGLE_LINE_ROLES = frozenset(("textbox", "spinbutton", "combobox", "button"))
_WORDS = re.compile(
    r"\b(?:accept|approv|authori[sz]|buy|charg|check ?out|commit|confirm|creat|delet|deploy|discard|donat"
    r"|eras|execut|finali[sz]|invit|issue|merg|order|pay|place|post|publish|purchas|refund|reject|releas|remov"
    r"|renew|reserv|reset|revok|save|schedul|send|sign(?! ?(?:in|out|up|on|off)\b)|submit|subscrib|terminat"
    r"|transfer|unsubscrib|updat|void|withdraw)\w*",
    re.IGNORECASE,
)
_WORD_BREAKS = re.compile(r"[_\-.]+|(?<=[a-z])(?=[A-Z])")
_NO_MEMBERS: dict[str, Any] = {}


def is_consequential(event: RecordedEvent, tags: Collection[str] = ()) -> bool:
    """Return whether an event may change something outside the page that repeating would change again.

    It submits a form, a request that changes something was recorded with it, its target or tool is named like
    `approve`, `pay`, `delete` or `send`, or it is tagged `consequential`.

    Args:
        event: the item.
        tags: names of the tags that this event anchors.
    """
    if CONSEQUENTIAL_TAG in tags or _has_consequential_request(event):
        return True
    if event["type"] not in _ACTING_TYPES:
        return False
    target = event.get("target") or _NO_MEMBERS
    attrs = target.get("attrs") or _NO_MEMBERS
    if event["type"] == "press":
        key = (event.get("input") or _NO_MEMBERS).get("key")
        role = target.get("role") or find_acted_role((target.get("tag") or "").lower(), attrs)
        if key in _SUBMITTING_KEYS and role in _SINGLE_LINE_ROLES:
            return True
        # On an element that a key activates, the press is a click.
        if key not in _ACTIVATING_KEYS or role not in _ACTIVATED_ROLES:
            return False
    if attrs.get("type") in ("submit", "image"):
        return True
    data = event.get("data") or _NO_MEMBERS
    named = (target.get("name"), target.get("text"), data.get("name") if event["type"] == "tool_call" else "")
    return any(
        isinstance(name, str) and _WORDS.search(_WORD_BREAKS.sub(" ", name[:200])) is not None
        for name in named
    )


def list_consequential(recording: RecordedSession) -> frozenset[str]:
    """Return the ids of the consequential events of a session."""
    times = [event["t_ms"] for event in recording.events]
    marked = {bisect_left(times, tag.t_ms) for tag in recording.tags if tag.name == CONSEQUENTIAL_TAG}
    return frozenset(
        event["id"]
        for index, event in enumerate(recording.events)
        if is_consequential(event, (CONSEQUENTIAL_TAG,) if index in marked else ())
    )


def _has_consequential_request(event: RecordedEvent) -> bool:
    for signal in event.get("signals") or ():
        method = signal.get("method")
        if isinstance(method, str) and method.upper() in CHANGING_METHODS:
            return True
    return False
