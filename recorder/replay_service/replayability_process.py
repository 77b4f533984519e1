"""Process that computes replayability within limits: snapshots come from clients. Decision 0044.

It is not the process of dry replays, so that a recording that takes long ends there no replay, and it leaves
the processor to sealing and replays.
"""

import os
from functools import lru_cache

import msgspec

from recorder.errors import Unavailable
from recorder.limited_process import LimitedProcess, serve_requests
from recorder.replay_service.dry_process import RecordingMessage, ReplayNotComputed, open_recording
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


class ReplayabilityReply(msgspec.Struct):
    """Value of a session; if it could not be computed, why."""

    value: float | None = None
    #: Kind of an error of ours, or of the recording.
    error: str = ""
    #: A store did not answer.
    is_unavailable: bool = False


class ReplayabilityProcess:
    """Process that computes one value after the other; the first one starts it."""

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES, seconds: float = SECONDS) -> None:
        self._process = LimitedProcess(serve, memory_bytes=memory_bytes, seconds=seconds)

    def compute(self, task: ReplayabilityTask) -> float | None:
        """Return the replayability of a session; None without snapshots or steps.

        Raises:
            ProcessEnded: if it takes too much memory or time.
            ReplayNotComputed: if an error ended it.
            Unavailable: if the store of the snapshots does not answer.
        """
        answer = self._process.request(msgspec.json.encode(task))
        reply = msgspec.json.decode(answer, type=ReplayabilityReply)
        if reply.is_unavailable:
            raise Unavailable("The blob store")
        if reply.error:
            raise ReplayNotComputed(reply.error)
        return reply.value

    def end(self) -> None:
        """End the process."""
        self._process.end()


def serve(memory_bytes: int) -> None:
    """Compute the values that standard input asks for, until it ends."""
    os.nice(_NICENESS)
    serve_requests(_answer, memory_bytes)


def _answer(message: bytes) -> bytes:
    task = msgspec.json.decode(message, type=ReplayabilityTask)
    try:
        recording = open_recording(task.recording, _open_blobs(task.blob_url, task.archive_url))
        reply = ReplayabilityReply(compute_replayability(recording))
    except Unavailable:
        reply = ReplayabilityReply(is_unavailable=True)
    except MemoryError:
        raise
    except Exception as error:  # the recording, or a defect of ours: the run goes on with other sessions
        reply = ReplayabilityReply(error=type(error).__name__)
    return msgspec.json.encode(reply)


@lru_cache(maxsize=2)
def _open_blobs(blob_url: str, archive_url: str | None) -> Blobs:
    return Blobs(blob_url, archive_url=archive_url)
