"""Process that computes dry replays within limits: snapshots and selectors come from clients. Decision 0044.

It has the recording from its parent and reads snapshots from the stores; it imports neither database nor
lake.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import msgspec
import orjson
import zstandard

from recorder import limits
from recorder.errors import Unavailable
from recorder.limited_process import LimitedProcess, ProcessEnded, serve_requests
from recorder.replays.anchors import (
    AnchorUnknown,
    EventPosition,
    ReplayAnchor,
    find_anchor_event,
    find_until_event,
)
from recorder.replays.comparisons import GraphEvidence
from recorder.replays.consequences import list_consequential
from recorder.replays.dry import ReplayStart, compute_replayability, replay_dry
from recorder.replays.policy import ReplayPolicy
from recorder.replays.recordings import (
    EventItem,
    InvalidRecording,
    RecordedFrame,
    RecordedSession,
    RecordedTag,
    list_steps,
)
from recorder.replays.results import Decision, DryResult, Mode
from recorder.storage.blobs import Blobs

#: Memory and time of a replay; one of a hundred steps takes 30 ms, and the process a second to start.
MEMORY_BYTES = 1024**3
SECONDS = 30.0


class EventMessage(msgspec.Struct, array_like=True):
    """An event of a recording; `payload` is the JSON text of its other members."""

    id: str
    t_ms: int
    type: str
    frame_id: str | None
    payload: msgspec.Raw


class FrameMessage(msgspec.Struct, array_like=True):
    """A frame of a recording, and where its snapshot is."""

    frame_id: str
    t_ms: int
    state_tokens: list[str]
    dom_object: str | None
    dom_offset: int | None
    dom_length: int | None


class RecordingMessage(msgspec.Struct, tag="recording"):
    """The recording of a sealed session: events by `(t_ms, id)`, frames by `(t_ms, frame_id)`."""

    session_id: str
    events: list[EventMessage]
    frames: list[FrameMessage]
    tags: list[RecordedTag]


class GraphMessage(msgspec.Struct, tag="graph"):
    """`GraphEvidence`, whose edges are `(source, target, share)`."""

    node_of: dict[str, str]
    edges: list[tuple[str, str, float]]
    labels: dict[str, str]


class StartMessage(msgspec.Struct):
    """The session, and the event in it, before which a replay begins."""

    recording: RecordingMessage
    event_id: str


class RecordingTask(msgspec.Struct, kw_only=True):
    """Task with a recording; `blob_url` and `archive_url` are the stores of the snapshots."""

    blob_url: str
    archive_url: str | None
    recording: RecordingMessage


class SuffixTask(RecordingTask, kw_only=True, tag=True):
    """The part of a recording from an event to the next success tag, whose targets are to be resolved."""

    event_id: str
    success_tags: list[str]


class ActsTask(RecordingTask, kw_only=True, tag=True):
    """The actions of a recording up to a time."""

    until_ms: int


class DryTask(RecordingTask, kw_only=True, tag=True):
    """A replay to compute."""

    against: RecordingMessage | GraphMessage | None
    start: StartMessage | None = None
    mode: Mode
    anchor: ReplayAnchor | None
    until: ReplayAnchor | None
    policy: ReplayPolicy
    input_names: list[str]
    decisions: dict[int, Decision]


class ReplayNotComputed(Exception):
    """The replay met an error of ours, which the message names."""


class Suffix(msgspec.Struct):
    """The last event of a suffix, and the share of its steps that can be resolved, as `SuffixTask` asks."""

    until_event_id: str
    replayability: float | None


class Act(msgspec.Struct, array_like=True):
    """An action of a recording."""

    t_ms: int
    event_id: str
    is_consequential: bool


class DryReply(msgspec.Struct):
    """Result of a task; without one, what there is instead."""

    result: DryResult | None = None
    suffix: Suffix | None = None
    acts: list[Act] | None = None
    #: Why the recording cannot be replayed.
    invalid: str = ""
    #: Kind of an error of ours.
    error: str = ""
    #: A store did not answer.
    is_unavailable: bool = False


class DryProcess:
    """Process that computes dry replays, one after the other; the first one starts it."""

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES, seconds: float = SECONDS) -> None:
        self._process = LimitedProcess(serve, memory_bytes=memory_bytes, seconds=seconds)
        self._limits = f"{seconds:g} seconds or {memory_bytes // 2**20} MiB"

    def replay(self, task: DryTask) -> DryResult:
        """Compute a replay.

        Raises:
            InvalidRecording: if the recording cannot be replayed, or takes too much memory or time.
            ReplayNotComputed: if an error of ours ended it.
            Unavailable: if the store of the snapshots does not answer.
        """
        result = self._request(task).result
        assert result is not None
        return result

    def read_suffix(self, task: SuffixTask) -> Suffix | None:
        """Return the suffix of a recording; None if it lacks the event.

        Raises:
            InvalidRecording, ReplayNotComputed, Unavailable: as `replay` does.
        """
        return self._request(task).suffix

    def list_acts(self, task: ActsTask) -> list[Act]:
        """Return the actions of a recording, in order.

        Raises:
            InvalidRecording, ReplayNotComputed, Unavailable: as `replay` does.
        """
        return self._request(task).acts or []

    def _request(self, task: DryTask | SuffixTask | ActsTask) -> DryReply:
        try:
            answer = self._process.request(msgspec.json.encode(task))
        except ProcessEnded:
            raise InvalidRecording(
                f"The replay takes more than {self._limits}; replay a part of the session, "
                "with mode partial, an anchor and until."
            ) from None
        reply = msgspec.json.decode(answer, type=DryReply)
        if reply.is_unavailable:
            raise Unavailable("The blob store")
        if reply.invalid:
            raise InvalidRecording(reply.invalid)
        if reply.error:
            raise ReplayNotComputed(reply.error)
        return reply

    def end(self) -> None:
        """End the process."""
        self._process.end()


def serve(memory_bytes: int) -> None:
    """Compute the replays that standard input names, until it ends."""
    serve_requests(_answer, memory_bytes)


def _answer(message: bytes) -> bytes:
    task = msgspec.json.decode(message, type=DryTask | SuffixTask | ActsTask)
    blobs = _open_blobs(task.blob_url, task.archive_url)
    try:
        recording = open_recording(task.recording, blobs)
        if isinstance(task, DryTask):
            reply = DryReply(_replay(task, recording, blobs))
        elif isinstance(task, SuffixTask):
            reply = DryReply(suffix=_compute_suffix(task, recording))
        else:
            reply = DryReply(acts=_list_acts(task, recording))
    except (InvalidRecording, AnchorUnknown) as error:
        reply = DryReply(invalid=str(error))
    except Unavailable:
        reply = DryReply(is_unavailable=True)
    except MemoryError:
        raise
    except Exception as error:  # a defect of ours: the run goes on with other replays
        reply = DryReply(error=type(error).__name__)
    return msgspec.json.encode(reply)


def _replay(task: DryTask, recording: RecordedSession, blobs: Blobs) -> DryResult:
    start = None
    if task.start is not None:
        other = open_recording(task.start.recording, blobs)
        start = ReplayStart(other, find_anchor_event(other, ReplayAnchor("event", task.start.event_id)))
    return replay_dry(
        recording,
        mode=task.mode,
        anchor=None if task.anchor is None else find_anchor_event(recording, task.anchor),
        until=None if task.until is None else find_until_event(recording, task.until),
        policy=task.policy,
        input_names=frozenset(task.input_names),
        against=_open_against(task.against, blobs),
        start=start,
        decisions=task.decisions,
    )


def _open_against(
    against: RecordingMessage | GraphMessage | None, blobs: Blobs
) -> RecordedSession | GraphEvidence | None:
    if isinstance(against, GraphMessage):
        shares = {(source, target): share for source, target, share in against.edges}
        return GraphEvidence(against.node_of, shares, against.labels)
    return None if against is None else open_recording(against, blobs)


def _compute_suffix(task: SuffixTask, recording: RecordedSession) -> Suffix | None:
    positions = [EventPosition(event["t_ms"], event["id"]) for event in recording.events]
    anchor = next((position for position in positions if position.event_id == task.event_id), None)
    if anchor is None:
        return None
    ends = [tag.t_ms for tag in recording.tags if tag.name in task.success_tags]
    success_ms = min((t_ms for t_ms in ends if t_ms >= anchor.t_ms), default=None)
    until = max(position for position in positions if success_ms is None or position.t_ms <= success_ms)
    return Suffix(until.event_id, compute_replayability(recording, anchor=anchor, until=until))


def _list_acts(task: ActsTask, recording: RecordedSession) -> list[Act]:
    consequential = list_consequential(recording)
    acts = [step.event for step in list_steps(recording) if step.event["t_ms"] <= task.until_ms]
    return [Act(act["t_ms"], act["id"], act["id"] in consequential) for act in acts]


@lru_cache(maxsize=2)
def _open_blobs(blob_url: str, archive_url: str | None) -> Blobs:
    return Blobs(blob_url, archive_url=archive_url)


def open_recording(message: RecordingMessage, blobs: Blobs) -> RecordedSession:
    """Return a recording whose snapshots are read from the store when they are needed."""
    frames = [
        RecordedFrame(frame.frame_id, frame.t_ms, tuple(frame.state_tokens), partial(_read_dom, blobs, frame))
        for frame in message.frames
    ]
    return RecordedSession(message.session_id, open_events(message), frames, message.tags)


def open_events(message: RecordingMessage) -> list[EventItem]:
    """Return the events of a recording."""
    events: list[EventItem] = []
    for event in message.events:
        members = {
            **orjson.loads(bytes(event.payload)),
            "id": event.id,
            "t_ms": event.t_ms,
            "type": event.type,
        }
        if event.frame_id is not None:
            members["frame_id"] = event.frame_id
        events.append(members)
    return events


def _read_dom(blobs: Blobs, frame: FrameMessage) -> Mapping[str, Any] | None:
    """Return the snapshot of a frame; None without one, or if its bytes are gone or damaged."""
    if frame.dom_object is None or frame.dom_offset is None:
        return None
    try:
        packed = blobs.get(frame.dom_object, frame.dom_offset, frame.dom_length)
    except KeyError:
        return None
    except Exception as error:  # clients of stores raise errors of many kinds
        raise Unavailable("The blob store") from error
    try:
        size = zstandard.get_frame_parameters(packed).content_size
        if not 0 < size <= limits.DOM_BYTES:
            return None
        value = orjson.loads(zstandard.ZstdDecompressor().decompress(packed))
    except (zstandard.ZstdError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None
