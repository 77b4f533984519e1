"""Range of a replay: the events with which it begins and ends, its anchors. Spec §4.6.

Events are ordered by `(t_ms, id)`, ids bytewise.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Literal, NamedTuple

from recorder.replays.recorded_session import RecordedSession

AnchorKind = Literal["tag", "frame", "event"]


class AnchorUnknown(Exception):
    """The session has no such tag, frame or event, or no event on the asked side of it."""

    def __init__(self, resource: AnchorKind) -> None:
        super().__init__(f"The session has no such {resource}.")
        self.resource = resource


@dataclass(frozen=True, slots=True)
class ReplayAnchor:
    """A position in a session: name of a tag, id of a frame or id of an event."""

    kind: AnchorKind
    name: str


class EventPosition(NamedTuple):
    """Position of an event in the order of its session."""

    t_ms: int
    event_id: str


def find_anchor_event(recording: RecordedSession, anchor: ReplayAnchor) -> EventPosition:
    """Return the first event with `(t_ms, id) >= (anchor.t_ms, "")`; of an event anchor, that event.

    Raises:
        AnchorUnknown: if the session lacks the anchor, or ends before any event at or after it.
    """
    positions = _list_event_positions(recording)
    if anchor.kind == "event":
        return _find_range_event(positions, anchor.name)
    index = bisect_left(positions, EventPosition(_find_range_anchor_time(recording, anchor), ""))
    if index == len(positions):
        raise AnchorUnknown("event")
    return positions[index]


def find_until_event(recording: RecordedSession, until: ReplayAnchor) -> EventPosition:
    """Return the last event at or before an anchor; of an event anchor, that event.

    Raises:
        AnchorUnknown: if the session lacks the anchor, or has no event at or before it.
    """
    positions = _list_event_positions(recording)
    if until.kind == "event":
        return _find_range_event(positions, until.name)
    index = bisect_right([position.t_ms for position in positions], _find_range_anchor_time(recording, until))
    if index == 0:
        raise AnchorUnknown("event")
    return positions[index - 1]


def _list_event_positions(recording: RecordedSession) -> list[EventPosition]:
    # Python compares texts by code point, which is the order of their UTF-8 bytes.
    return [EventPosition(event["t_ms"], event["id"]) for event in recording.events]


def _find_range_event(positions: list[EventPosition], event_id: str) -> EventPosition:
    for position in positions:
        if position.event_id == event_id:
            return position
    raise AnchorUnknown("event")


def _find_range_anchor_time(recording: RecordedSession, anchor: ReplayAnchor) -> int:
    """Return the time of a frame, or of the last tag of that name."""
    if anchor.kind == "tag":
        times = [tag.t_ms for tag in recording.tags if tag.name == anchor.name]
    else:
        times = [frame.t_ms for frame in recording.frames if frame.frame_id == anchor.name]
    if not times:
        raise AnchorUnknown(anchor.kind)
    return max(times)
