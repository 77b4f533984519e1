"""Process that computes replayability within limits: snapshots come from clients. Decision 0044.

It is a process of its own: a recording that takes too long ends no dry replay, and its low priority leaves
the processor to sealing and replays.
"""

import os
from collections.abc import Generator
from contextlib import closing
from functools import lru_cache
from typing import NamedTuple

import msgspec

from recorder.errors import Unavailable
from recorder.limited_process import WAITING_FACTOR, LimitedProcess, ProcessEnded, serve_limited_process
from recorder.replay_service.dry.process_replies import ReplayNotComputed, decode_reply, encode_reply
from recorder.replay_service.recordings.recording_messages import RecordingMessage, open_recording_message
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


class ReplayabilityProcess:
    """Process that computes one value after the other; the first one starts it."""

    def __init__(
        self,
        *,
        memory_bytes: int = MEMORY_BYTES,
        seconds: float = SECONDS,
        is_long: bool = False,
        waiting_factor: float = WAITING_FACTOR,
    ) -> None:
        """Set the limits.

        Args:
            memory_bytes: memory of a session.
            seconds: time of a session.
            is_long: whether the process is for one session that takes long: it has those seconds on a
                processor.
            waiting_factor: times that such a session may take as long, because it waits for a processor.
        """
        self._process = LimitedProcess(
            serve_replayability,
            memory_bytes=memory_bytes,
            seconds=waiting_factor * seconds if is_long else seconds,
            processor_seconds=seconds if is_long else None,
        )

    @property
    def is_ready(self) -> bool:
        """Return whether the process has started, so that it computes what it has."""
        return self._process.is_ready

    def start(self) -> None:
        """Start the process before the first session, unless there is one."""
        self._process.start()

    def compute(
        self, task: ReplayabilityTask, *, patience_s: float = PATIENCE_S
    ) -> Generator[Replayability | None, None, None]:
        """Yield the replayability of a session; before that None, each time it takes so many seconds more.

        An iterator that is closed before ends the process.
        """
        message = msgspec.json.encode(task)
        with closing(self._process.request_each([message], patience_s=patience_s)) as answers:
            for answer in answers:
                if isinstance(answer, ProcessEnded):
                    yield Replayability(error=answer)
                else:
                    yield None if answer is None else _read_replayability_answer(answer)

    def end(self) -> None:
        """End the process."""
        self._process.end()


def _read_replayability_answer(answer: bytes) -> Replayability:
    try:
        return Replayability(decode_reply(answer, float))
    except (InvalidRecording, ReplayNotComputed, Unavailable) as error:
        return Replayability(error=error)


def serve_replayability(memory_bytes: int) -> None:
    """Compute the values that standard input asks for, until it ends."""
    os.nice(_NICENESS)
    serve_limited_process(_answer_replayability_task, memory_bytes)


def _answer_replayability_task(message: bytes) -> bytes:
    return encode_reply(lambda: _compute_replayability(msgspec.json.decode(message, type=ReplayabilityTask)))


def _compute_replayability(task: ReplayabilityTask) -> float | None:
    return compute_replayability(
        open_recording_message(task.recording, _open_replayability_blobs(task.blob_url, task.archive_url))
    )


@lru_cache(maxsize=2)
def _open_replayability_blobs(blob_url: str, archive_url: str | None) -> Blobs:
    return Blobs(blob_url, archive_url=archive_url)
