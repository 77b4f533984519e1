"""Process that computes replayability within limits: snapshots come from clients. Decision 0044.

It is not the process of dry replays, so that a recording that takes long ends there no replay, and it leaves
the processor to sealing and replays.
"""

import os
from functools import lru_cache

import msgspec

from recorder.limited_process import LimitedProcess, serve_requests
from recorder.replay_service.dry_process import RecordingMessage, open_recording
from recorder.replay_service.process_replies import decode_reply, encode_reply
from recorder.replays.dry import compute_replayability
from recorder.storage.blobs import Blobs

#: Memory and time of a session; one of a hundred steps takes some ten milliseconds.
MEMORY_BYTES = 512 * 1024**2
SECONDS = 15.0
_NICENESS = 10


class ReplayabilityTask(msgspec.Struct):
    """Actions and frames of a session; `blob_url` and `archive_url` are the stores of its snapshots."""

    blob_url: str
    archive_url: str | None
    recording: RecordingMessage


class ReplayabilityProcess:
    """Process that computes one value after the other; the first one starts it."""

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES, seconds: float = SECONDS) -> None:
        self._process = LimitedProcess(serve_replayability, memory_bytes=memory_bytes, seconds=seconds)

    def compute(self, task: ReplayabilityTask) -> float | None:
        """Return the replayability of a session; None without snapshots or steps.

        Raises:
            ProcessEnded: if it takes too much memory or time.
            InvalidRecording: if the recording cannot be replayed.
            ReplayNotComputed: if an error ended it.
            Unavailable: if the store of the snapshots does not answer.
        """
        value: float | None = decode_reply(self._process.request(msgspec.json.encode(task)), float)
        return value

    def end(self) -> None:
        """End the process."""
        self._process.end()


def serve_replayability(memory_bytes: int) -> None:
    """Compute the values that standard input asks for, until it ends."""
    os.nice(_NICENESS)
    serve_requests(_answer, memory_bytes)


def _answer(message: bytes) -> bytes:
    return encode_reply(lambda: _compute(msgspec.json.decode(message, type=ReplayabilityTask)))


def _compute(task: ReplayabilityTask) -> float | None:
    return compute_replayability(open_recording(task.recording, _open_blobs(task.blob_url, task.archive_url)))


@lru_cache(maxsize=2)
def _open_blobs(blob_url: str, archive_url: str | None) -> Blobs:
    return Blobs(blob_url, archive_url=archive_url)
