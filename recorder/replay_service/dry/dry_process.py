"""Process that computes dry replays within limits: snapshots and selectors come from clients. Decision 0044.

It has the recording from its parent and reads snapshots from the stores; it imports neither database nor
lake.
"""

import os
from functools import lru_cache

import msgspec

from recorder.errors import Unavailable
from recorder.garbage_collector import MANY_REQUESTS, reduced_garbage_collection
from recorder.limited_process import ProcessEnded, serve_limited_process
from recorder.replay_service.dry.process_replies import ReplayNotComputed, decode_reply, encode_reply
from recorder.replay_service.recordings.recording_messages import RecordingMessage, open_recording_message
from recorder.replay_service.task_process import TaskProcess
from recorder.replays.dry_replay import ReplayStart, replay_dry
from recorder.replays.recorded_session import (
    InvalidRecording,
    RecordedSession,
)
from recorder.replays.replay_comparisons import ComparedGraph
from recorder.replays.replay_policy import ReplayPolicy
from recorder.replays.replay_range import ReplayAnchor, find_anchor_event, find_until_event
from recorder.replays.replay_results import Decision, DryResult, ReplayKind
from recorder.storage.blobs import Blobs

#: Memory and time of a replay; one of a hundred steps takes 30 ms, and the process a second to start.
MEMORY_BYTES = 1024**3
SECONDS = 30.0
#: Longer than nearly all replays take: after it, what is computed is stored.
PATIENCE_S = 0.05
_NICENESS = 10


class GraphMessage(msgspec.Struct, tag="graph"):
    """`ComparedGraph`, whose edges are `(source, target, share)`."""

    node_of: dict[str, str]
    edges: list[tuple[str, str, float]]
    labels: dict[str, str]


class StartMessage(msgspec.Struct):
    """The session, and the event in it, before which a replay begins."""

    recording: RecordingMessage
    event_id: str


class DryTask(msgspec.Struct, kw_only=True):
    """A replay to compute; `blob_url` and `archive_url` are the stores of the snapshots."""

    blob_url: str
    archive_url: str | None
    recording: RecordingMessage
    against: RecordingMessage | GraphMessage | None
    start: StartMessage | None = None
    mode: ReplayKind
    anchor: ReplayAnchor | None
    until: ReplayAnchor | None
    policy: ReplayPolicy
    input_names: list[str]
    decisions: dict[int, Decision]


#: Result of a replay; in place of one the reason why there is none: `InvalidRecording` if it cannot be
#: replayed or takes too much memory or time, `Unavailable` if the store of the snapshots does not answer,
#: `ReplayNotComputed` for a defect of the service.
DryOutcome = DryResult | InvalidRecording | Unavailable | ReplayNotComputed


def serve_dry_replays(memory_bytes: int) -> None:
    """Compute the replays that standard input names, until it ends."""
    # Trees of pages hold themselves: they are freed by collections, which pass over the modules.
    with reduced_garbage_collection(MANY_REQUESTS, older=5):
        serve_limited_process(_answer_dry_task, memory_bytes)


def serve_long_dry_replay(memory_bytes: int) -> None:
    """Compute a replay that takes long: slowly while others need the processors."""
    os.nice(_NICENESS)
    serve_dry_replays(memory_bytes)


class DryProcess(TaskProcess[DryTask, DryOutcome]):
    """Process that computes dry replays."""

    serve = serve_dry_replays
    serve_long = serve_long_dry_replay
    memory_bytes = MEMORY_BYTES
    seconds = SECONDS

    def _read_reply(self, answer: bytes | ProcessEnded) -> DryOutcome:
        if isinstance(answer, ProcessEnded):
            return InvalidRecording(
                f"The replay takes more than {self._limits}; replay a part of the session, "
                "with mode partial, an anchor and until."
            )
        try:
            result: DryResult = decode_reply(answer, DryResult)
        except (InvalidRecording, Unavailable, ReplayNotComputed) as error:
            return error
        return result


def _answer_dry_task(message: bytes) -> bytes:
    return encode_reply(lambda: _replay_task(msgspec.json.decode(message, type=DryTask)))


def _replay_task(task: DryTask) -> DryResult:
    blobs = _open_dry_process_blobs(task.blob_url, task.archive_url)
    recording, start = open_recording_message(task.recording, blobs), None
    if task.start is not None:
        other = open_recording_message(task.start.recording, blobs)
        start = ReplayStart(other, find_anchor_event(other, ReplayAnchor("event", task.start.event_id)))
    return replay_dry(
        recording,
        mode=task.mode,
        anchor=None if task.anchor is None else find_anchor_event(recording, task.anchor),
        until=None if task.until is None else find_until_event(recording, task.until),
        policy=task.policy,
        input_names=frozenset(task.input_names),
        against=_open_comparison(task.against, blobs),
        start=start,
        decisions=task.decisions,
    )


def _open_comparison(
    against: RecordingMessage | GraphMessage | None, blobs: Blobs
) -> RecordedSession | ComparedGraph | None:
    """Return the session or graph that a dry replay is compared with; None if it names none."""
    if isinstance(against, GraphMessage):
        shares = {(source, target): share for source, target, share in against.edges}
        return ComparedGraph(against.node_of, shares, against.labels)
    return None if against is None else open_recording_message(against, blobs)


@lru_cache(maxsize=2)
def _open_dry_process_blobs(blob_url: str, archive_url: str | None) -> Blobs:
    return Blobs(blob_url, archive_url=archive_url)
