"""Plan of a live replay: its steps, read from the recording in a process of limited memory and time.

A recording is content of clients; the worker, which does replays of all workspaces, reads one step at a time
of it. docs/decisions/0045-live-sandbox.md.
"""

from collections.abc import Sequence
from typing import Any, Self

import msgspec

from recorder.limited_process import LimitedProcess, ProcessEnded, serve_limited_process
from recorder.replay_service.dry.dry_process import MEMORY_BYTES, SECONDS
from recorder.replay_service.dry.process_replies import decode_reply, encode_reply
from recorder.replay_service.recordings.recording_messages import (
    RecordingMessage,
    open_recording_message_events,
)
from recorder.replays.consequences import list_consequential
from recorder.replays.dry_replay import MOST_STEPS, NO_ACTION
from recorder.replays.recorded_session import (
    InvalidRecording,
    RecordedFrame,
    RecordedSession,
    RecordedStep,
    find_recorded_input_name,
    list_recorded_failed_actions,
    list_recorded_page_urls,
    list_recorded_steps,
)
from recorder.replays.replay_range import EventPosition, ReplayAnchor, find_anchor_event, find_until_event

_MOST_BYTES = 16 * 1024 * 1024
_LATER = "choose fewer with anchor and until"


class PlannedFrame(msgspec.Struct, array_like=True):
    """A frame before or after a step."""

    frame_id: str
    t_ms: int
    state_tokens: tuple[str, ...]


class LivePlanStep(msgspec.Struct, array_like=True):
    """A step, with its event as JSON."""

    step: int
    event_id: str
    t_ms: int
    type: str
    before: int | None
    after: int | None
    #: Address of the page on which the event happened; empty if the recording holds none.
    page_url: str
    input_name: str | None
    is_consequential: bool
    #: Whether no error followed it in the recording.
    has_succeeded: bool
    event: msgspec.Raw

    def read(self) -> RecordedStep:
        """Return the step with its event."""
        event: dict[str, Any] = msgspec.json.decode(self.event)
        return RecordedStep(self.step, event, self.before, self.after)


class LivePlan(msgspec.Struct):
    """The steps of a live replay, and those before its anchor."""

    steps: list[LivePlanStep]
    prefix: list[LivePlanStep]
    frames: dict[int, PlannedFrame]
    #: Steps of the whole session.
    total: int

    def get_frame(self, index: int | None) -> RecordedFrame | None:
        """Return a frame of the recording by its index."""
        if index is None:
            return None
        frame = self.frames[index]
        return RecordedFrame(frame.frame_id, frame.t_ms, frame.state_tokens, lambda: None)


class _PlanTask(msgspec.Struct):
    recording: RecordingMessage
    anchor: ReplayAnchor | None
    until: ReplayAnchor | None


class LiveReplayPlanner:
    """Process that plans live replays, one after the other; the first one starts it."""

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES, seconds: float = SECONDS) -> None:
        self._process = LimitedProcess(serve_live_plans, memory_bytes=memory_bytes, seconds=seconds)
        self._limits = f"{seconds:g} seconds or {memory_bytes // 2**20} MiB"

    def plan(
        self, recording: RecordingMessage, anchor: ReplayAnchor | None, until: ReplayAnchor | None
    ) -> LivePlan:
        """Return the plan of a replay.

        Args:
            recording: the recording.
            anchor: where the replay begins; None for its first step.
            until: where it ends; None for its last step.

        Raises:
            InvalidRecording: if the recording cannot be replayed, or takes too much memory or time.
            ReplayNotComputed: if a defect of the service ended it.
        """
        task = msgspec.json.encode(_PlanTask(recording, anchor, until))
        try:
            reply = self._process.request(task)
        except ProcessEnded:
            raise InvalidRecording(f"Its recording takes more than {self._limits}; {_LATER}.") from None
        plan: LivePlan = decode_reply(reply, LivePlan)
        return plan

    def end(self) -> None:
        """End the process."""
        self._process.end()

    def __enter__(self) -> Self:
        """Return the planner; it ends with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def serve_live_plans(memory_bytes: int) -> None:
    """Plan the replays that standard input names, until it ends."""
    serve_limited_process(_answer_plan_task, memory_bytes)


def _answer_plan_task(message: bytes) -> bytes:
    return encode_reply(lambda: _encode_live_plan(msgspec.json.decode(message, type=_PlanTask)))


def _encode_live_plan(task: _PlanTask) -> msgspec.Raw:
    """Return the plan of a live replay as JSON; raise if its steps are too large."""
    plan = msgspec.json.encode(_make_live_plan(task))
    if len(plan) > _MOST_BYTES:
        text = f"The steps of a live replay have at most {_MOST_BYTES // 2**20} MiB; {_LATER}."
        raise InvalidRecording(text)
    return msgspec.Raw(plan)


def _make_live_plan(task: _PlanTask) -> LivePlan:
    given = task.recording
    frames = [
        RecordedFrame(frame.frame_id, frame.t_ms, tuple(frame.state_tokens), lambda: None)
        for frame in given.frames
    ]
    recording = RecordedSession(given.session_id, open_recording_message_events(given), frames, given.tags)
    anchor = None if task.anchor is None else find_anchor_event(recording, task.anchor)
    until = None if task.until is None else find_until_event(recording, task.until)
    steps = list_recorded_steps(recording)
    chosen, prefix = [], []
    for step in steps:
        position = EventPosition(step.event["t_ms"], step.event["id"])
        if anchor is not None and position < anchor:
            prefix.append(step)
        elif until is None or position <= until:
            chosen.append(step)
    if not chosen:
        raise InvalidRecording(NO_ACTION)
    if len(chosen) > MOST_STEPS:
        raise InvalidRecording(f"A replay has at most {MOST_STEPS:,} steps; {_LATER}.")
    if len(prefix) > MOST_STEPS:
        raise InvalidRecording(f"The anchor of a live replay comes after at most {MOST_STEPS:,} steps.")
    used = {index for step in (*chosen, *prefix) for index in (step.before, step.after) if index is not None}
    planned = {
        index: PlannedFrame(frames[index].frame_id, frames[index].t_ms, frames[index].state_tokens)
        for index in used
    }
    return LivePlan(
        _plan_live_steps(recording, chosen), _plan_live_steps(recording, prefix), planned, len(steps)
    )


def _plan_live_steps(recording: RecordedSession, steps: Sequence[RecordedStep]) -> list[LivePlanStep]:
    consequential, failed = list_consequential(recording), list_recorded_failed_actions(recording.events)
    urls = list_recorded_page_urls(recording.events)
    return [
        LivePlanStep(
            step.step,
            step.event["id"],
            step.event["t_ms"],
            step.event["type"],
            step.before,
            step.after,
            urls[step.event["id"]],
            find_recorded_input_name(step.event),
            step.event["id"] in consequential,
            step.event["id"] not in failed,
            msgspec.Raw(msgspec.json.encode(step.event)),
        )
        for step in steps
    ]
