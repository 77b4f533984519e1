"""Recorded sessions as replays read them, their steps, and the frames before and after a step. Spec §4.6."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recorder.event_types import is_action
from recorder.memory.steps.screens import bind_screen_frames_to_events

RecordedEvent = Mapping[str, Any]
#: Types that a page causes by itself too, and the signal with which the causing action announces them.
_EFFECTS = {
    "navigate": "navigation",
    "tab_open": "popup",
    "tab_switch": "popup",
    "download": "download",
    "dialog": "dialog",
}


class InvalidRecording(Exception):
    """The recording cannot be replayed; the message says which part of it is unusable."""


@dataclass(frozen=True)
class RecordedFrame:
    """A frame of a session; its snapshot is read when it is needed."""

    frame_id: str
    t_ms: int
    state_tokens: tuple[str, ...]
    #: Returns the `dom` member as it was sent, or None without one.
    read_dom: Callable[[], Mapping[str, Any] | None]


@dataclass(frozen=True)
class RecordedTag:
    """A tag of a session."""

    tag_id: str
    name: str
    t_ms: int


@dataclass(frozen=True)
class RecordedSession:
    """A sealed session: events ascending by `(t_ms, id)`, frames by `(t_ms, frame_id)`."""

    session_id: str
    events: Sequence[RecordedEvent]
    frames: Sequence[RecordedFrame]
    tags: Sequence[RecordedTag]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """An action to replay, with the indices of the frames before and after it."""

    #: Counts from 1 over the whole session, whatever part of it is replayed.
    step: int
    event: RecordedEvent
    before: int | None
    after: int | None


def list_recorded_steps(recording: RecordedSession) -> list[RecordedStep]:
    """Return the actions of a session that a replay performs, in order.

    A `navigate` that the action before it announced by a signal is an effect of that action and no step; so
    are announced dialogs, downloads and tabs.
    """
    events = _select_recorded_actions(recording.events)
    frames = recording.frames
    before = bind_screen_frames_to_events(
        [(event["t_ms"], event.get("frame_id")) for event in events],
        [(frame.t_ms, frame.frame_id) for frame in frames],
    )
    steps = []
    for number, event in enumerate(events, start=1):
        until_ms = events[number]["t_ms"] if number < len(events) else None
        bound = before[number - 1]
        steps.append(
            RecordedStep(
                number, event, bound, find_recorded_frame_after(frames, bound, event["t_ms"], until_ms)
            )
        )
    return steps


def find_recorded_frame_after(
    frames: Sequence[RecordedFrame], before: int | None, t_ms: int, until_ms: int | None
) -> int | None:
    """Return the index of the first frame that shows the state after an event; None without one.

    Args:
        frames: the frames of the session, ascending.
        before: index of the frame before the event, as `bind_screen_frames_to_events` gives it.
        t_ms: time of the event.
        until_ms: time of the next event; a frame of that very time still shows what the event led to.
    """
    index = 0 if before is None else before + 1
    index = max(index, bisect_left(frames, t_ms, key=lambda frame: frame.t_ms))
    if index < len(frames) and (until_ms is None or frames[index].t_ms <= until_ms):
        return index
    return None


def _select_recorded_actions(events: Sequence[RecordedEvent]) -> list[RecordedEvent]:
    chosen: list[RecordedEvent] = []
    announced: list[str] = []
    for event in events:
        if not is_action(event["type"]):
            continue
        signal = _EFFECTS.get(event["type"])
        if signal is not None and signal in announced:
            announced.remove(signal)
            continue
        announced = [given.get("type", "") for given in event.get("signals") or ()]
        chosen.append(event)
    return chosen


def find_recorded_input_name(event: RecordedEvent) -> str | None:
    """Return the name of the input that a live replay needs for an event; None if it needs none.

    It needs one for a masked value, and for the contents of a file that is uploaded.
    """
    given = event.get("input") or {}
    if not given.get("masked") and event["type"] != "upload":
        return None
    return str(given.get("secret_ref") or event["id"])


def list_recorded_failed_actions(events: Sequence[RecordedEvent]) -> frozenset[str]:
    """Return the ids of the actions that an error followed before the next action."""
    failed: set[str] = set()
    action: str | None = None
    for event in events:
        if is_action(event["type"]):
            action = event["id"]
        elif event["type"] == "error" and action is not None:
            failed.add(action)
    return frozenset(failed)


def list_recorded_page_urls(events: Sequence[RecordedEvent]) -> dict[str, str]:
    """Return the address of the page on which each event happened: its own, or the last one before it."""
    urls: dict[str, str] = {}
    last = ""
    for event in events:
        last = urls[event["id"]] = str(event.get("url") or last)
    return urls
