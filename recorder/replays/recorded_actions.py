"""Comparison of two recorded actions by what their events hold, without a snapshot of the page. Spec §4.6."""

from recorder.memory.steps.action_tokens import (
    action_token,
    find_acted_role,
    make_action_target_token,
    url_template,
)
from recorder.replays.recorded_session import RecordedEvent
from recorder.replays.target_resolution import has_same_words


def is_same_recorded_action(event: RecordedEvent, other: RecordedEvent) -> bool:
    """Return whether two events of one type act on the same element of the same page.

    Addresses are compared without what varies, such as numbers; an event without one is on any page.
    """
    url, other_url = event.get("url"), other.get("url")
    if url and other_url and url_template(url) != url_template(other_url):
        return False
    return is_same_recorded_target(event, other)


def is_same_recorded_target(event: RecordedEvent, other: RecordedEvent) -> bool:
    """Return whether two events of one type act on the same element, or lead to the same address.

    Elements are the same if the memory graph has one token for both, or if they have one role and names with
    enough words in common.
    """
    if _make_target_token(event) == _make_target_token(other):
        return True
    target, other_target = event.get("target") or {}, other.get("target") or {}
    name, other_name = target.get("name"), other_target.get("name")
    if not name or not other_name or _find_target_role(event) != _find_target_role(other):
        return False
    return has_same_words(name, other_name)


def _make_target_token(event: RecordedEvent) -> str:
    token, _ = make_action_target_token(action_token(event["type"], event.get("input") or {}), event)
    return token


def _find_target_role(event: RecordedEvent) -> str:
    target = event.get("target") or {}
    return (
        target.get("role") or find_acted_role((target.get("tag") or "").lower(), target.get("attrs") or {})
    ).lower()
