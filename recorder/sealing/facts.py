"""What is found out about a session once, at seal, so that nothing sealed needs a second look. Design §3.

Total order `(t_ms, id)`, the frame each event is bound to, keyframes, action flags, steps, the rows' digest.
"""

from dataclasses import dataclass
from datetime import timedelta

import orjson

from recorder import clock
from recorder.memory.states import FrameScreen, Screen, bind_frames
from recorder.memory.steps import Step, session_steps
from recorder.models.event_types import is_action
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.recording.hot_events import EventRecord
from recorder.rowset import events_digest
from recorder.sealing.pictures import KEYFRAME_DISTANCE, distance
from recorder.sealing.screens import SeenFrame
from recorder.sealing.stopped import StoppedSession


@dataclass(frozen=True)
class FrameFacts:
    """A frame with what sampling and replays need of it."""

    frame: FrameRow
    screen: Screen
    dhash: int | None
    is_keyframe: bool
    n_events: int
    has_action: bool


@dataclass(frozen=True)
class SessionFacts:
    """A session with everything that its lake rows and its graph need."""

    row: SessionRow
    events: list[EventRecord]
    #: Place of each event's frame in `frames`; None before the first.
    bound: list[int | None]
    actions: list[bool]
    frames: list[FrameFacts]
    steps: list[Step]
    rows_sha256: str


def find_facts(session: StoppedSession, seen: list[SeenFrame]) -> SessionFacts:
    """Derive the facts of one session.

    Args:
        seen: what each of its frames shows, in their order.
    """
    events, frames = session.events, session.frames
    bound = bind_frames(
        [(event.t_ms, event.frame_id) for event in events], [(frame.t_ms, frame.frame_id) for frame in frames]
    )
    actions = [is_action(event.type) for event in events]
    steps = session_steps(
        [_item(event) for event in events],
        [
            FrameScreen(frame.t_ms, frame.frame_id, shown.screen)
            for frame, shown in zip(frames, seen, strict=True)
        ],
    )
    return SessionFacts(
        row=session.row,
        events=events,
        bound=bound,
        actions=actions,
        frames=_frame_facts(frames, seen, bound, actions),
        steps=steps,
        rows_sha256=_digest(session.row, events),
    )


def _frame_facts(
    frames: list[FrameRow],
    seen: list[SeenFrame],
    bound: list[int | None],
    actions: list[bool],
) -> list[FrameFacts]:
    counts = [0] * len(frames)
    acted = [False] * len(frames)
    for place, action in zip(bound, actions, strict=True):
        if place is not None:
            counts[place] += 1
            acted[place] = acted[place] or action
    facts: list[FrameFacts] = []
    last: FrameFacts | None = None
    for frame, (screen, digest), count, has_action in zip(frames, seen, counts, acted, strict=True):
        keyframe = last is None or _is_new_screen(frame, screen, digest, last)
        found = FrameFacts(frame, screen, digest, keyframe, count, has_action)
        last = found if keyframe else last
        facts.append(found)
    return facts


def _is_new_screen(frame: FrameRow, screen: Screen, digest: int | None, last: FrameFacts) -> bool:
    """Whether the screen changed materially since the last keyframe (rule 1)."""
    return (
        frame.keyframe is True
        or screen.state_key != last.screen.state_key
        or distance(digest, last.dhash) >= KEYFRAME_DISTANCE
    )


def _item(event: EventRecord) -> dict[str, object]:
    """The event as one object, for the step rules."""
    item: dict[str, object] = orjson.loads(event.payload)
    item.update(id=event.id, t_ms=event.t_ms, type=event.type, frame_id=event.frame_id)
    return item


def _digest(row: SessionRow, events: list[EventRecord]) -> str:
    start_us = start_of(row)
    return events_digest(
        (
            event.id,
            event.t_ms,
            start_us + event.t_ms * 1000,
            event.type,
            event.frame_id,
            event.payload.decode(),
        )
        for event in events
    )


def start_of(row: SessionRow) -> int:
    """The session's start in microseconds since 1970: `t_ms` counts from it."""
    assert row.started_at is not None
    return (row.started_at - clock.from_ms(0)) // timedelta(microseconds=1)
