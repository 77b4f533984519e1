"""Process that computes replayability within limits: snapshots come from clients. Decision 0044.

It is a process of its own: a recording that takes too long ends no dry replay, and its low priority leaves
the processor to sealing and replays.
"""

import os
from functools import lru_cache
from typing import NamedTuple

import msgspec

from recorder.errors import Unavailable
from recorder.limited_process import ProcessEnded, serve_limited_process
from recorder.replay_service.dry.process_replies import ReplayNotComputed, decode_reply, encode_reply
from recorder.replay_service.recordings.recording_messages import RecordingMessage, open_recording_message
from recorder.replay_service.task_process import TaskProcess
from recorder.replays.dry_replay import compute_replayability
from recorder.replays.recorded_session import InvalidRecording
from recorder.storage.blobs import Blobs

#: Memory and time of a session; one of a hundred steps takes some ten milliseconds.
MEMORY_BYTES = 512 * 1024**2
SECONDS = 15.0
_NICENESS = 10
#: Longer than nearly all sessions take.
PATIENCE_S = 0.05


class ReplayabilityTask(msgspec.Struct):
    """Actions and frames of a session; `blob_url` and `archive_url` are the stores of its snapshots."""

    blob_url: str
    archive_url: str | None
    recording: RecordingMessage


class Replayability(NamedTuple):
    """Replayability of a session, or why there is none."""

    #: None without snapshots or steps.
    value: float | None = None
    #: `ProcessEnded` if it takes too much memory or time; as `decode_reply` raises it.
    error: ProcessEnded | InvalidRecording | ReplayNotComputed | Unavailable | None = None


def serve_replayability(memory_bytes: int) -> None:
    """Compute the values that standard input asks for, until it ends."""
    os.nice(_NICENESS)
    serve_limited_process(_answer_replayability_task, memory_bytes)


class ReplayabilityProcess(TaskProcess[ReplayabilityTask, Replayability]):
    """Process that computes replayability."""

    serve = serve_replayability
    serve_long = serve_replayability
    memory_bytes = MEMORY_BYTES
    seconds = SECONDS

    def _read_reply(self, answer: bytes | ProcessEnded) -> Replayability:
        if isinstance(answer, ProcessEnded):
            return Replayability(error=answer)
        try:
            return Replayability(decode_reply(answer, float))
        except (InvalidRecording, ReplayNotComputed, Unavailable) as error:
            return Replayability(error=error)


def _answer_replayability_task(message: bytes) -> bytes:
    return encode_reply(lambda: _compute_replayability(msgspec.json.decode(message, type=ReplayabilityTask)))


def _compute_replayability(task: ReplayabilityTask) -> float | None:
    return compute_replayability(
        open_recording_message(task.recording, _open_replayability_blobs(task.blob_url, task.archive_url))
    )


@lru_cache(maxsize=2)
def _open_replayability_blobs(blob_url: str, archive_url: str | None) -> Blobs:
    return Blobs(blob_url, archive_url=archive_url)
