"""Recordings of sealed sessions, read from database and lake for their replayability. Spec §4.6."""

from collections.abc import Sequence

from recorder.models.session import SessionRow
from recorder.replay_service.recordings.recording_messages import RecordingMessage
from recorder.replay_service.recordings.recording_reads import read_recording, read_sessions_with_recordings
from recorder.replays.recorded_session import InvalidRecording
from recorder.runtime import Runtime


class FramesMissing(Exception):
    """The lake lacks frames of a sealed session."""


def read_replayability_recordings(
    runtime: Runtime, rows: Sequence[SessionRow]
) -> dict[str, RecordingMessage | None]:
    """Return recordings by session; None without snapshots, and for one that is too large to be replayed.

    Raises:
        FramesMissing: if the lake lacks frames of a session.
        Unavailable: if a store does not answer.
    """
    small = read_sessions_with_recordings(runtime, [row.id for row in rows]).recordings
    recordings: dict[str, RecordingMessage | None] = {}
    for row in rows:
        try:
            recording = small.get(row.id) or read_recording(runtime, row)
        except InvalidRecording:
            recordings[row.id] = None
            continue
        if len(recording.frames) != row.frame_count:
            raise FramesMissing
        has_snapshots = any(frame.dom_object for frame in recording.frames)
        recordings[row.id] = recording if has_snapshots else None
    return recordings
