"""Names of the pages of a recording: the first is p1, a popup has the name that its signal gives it."""

from collections.abc import Iterable
from typing import Any

from recorder.live.action_messages import list_action_signals
from recorder.replays.recorded_session import RecordedEvent

#: Types of the steps that open a page by themselves, go to another one, or close one.
TAB_STEPS = frozenset(("tab_open", "tab_switch", "tab_close"))
FIRST_PAGE = "p1"


def read_tab_name(event: RecordedEvent) -> str | None:
    """Return the name of the page that a step opens, goes to or closes; None without one."""
    name = _read_page_name(event.get("data"))
    # A `tab_open` happens in the page that it opens.
    return _read_page_name(event.get("app")) if name is None and event["type"] == "tab_open" else name


def list_popup_names(event: RecordedEvent) -> list[str | None]:
    """Return the names of the popups that an event opened, in the order of their opening."""
    return [_read_page_name(signal) for signal in list_action_signals(event, "popup")]


def find_acted_page_name(events: Iterable[RecordedEvent]) -> str | None:
    """Return the name of the page that is acted on after some events; None where it is unknown.

    Args:
        events: the steps from the first one of the recording on.
    """
    names: list[str | None] = [FIRST_PAGE]
    for event in events:
        if event["type"] == "tab_open":
            names.append(read_tab_name(event))
        elif event["type"] in TAB_STEPS:
            name = read_tab_name(event)
            if name not in names or name is None:
                return None
            names.remove(name)
            names += [name] if event["type"] == "tab_switch" else []
        names += list_popup_names(event)
    return names[-1] if names else None


def _read_page_name(holder: Any) -> str | None:
    name = holder.get("page") if isinstance(holder, dict) else None
    return name if isinstance(name, str) and name else None
