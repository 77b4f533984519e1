"""Recording of a sealed session, read for a replay. Design §3."""

import msgspec
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.session import SessionRow, TagRow
from recorder.recording.item_reads import read_sealed_frames
from recorder.recording.session_events import EventPortions
from recorder.replaying.dry_process import EventMessage, FrameMessage, RecordingMessage
from recorder.replays.recordings import InvalidRecording, RecordedTag
from recorder.runtime import Runtime

#: Longer sessions are no recordings of one run, and would fill the memory of the run.
MOST_EVENTS = 100_000
MOST_BYTES = 64 * 1024 * 1024
_FRAME_COLUMNS = ("frame_id", "t_ms", "state_tokens", "dom_object", "dom_offset", "dom_length")


class _Size:
    """Bytes of a recording that were read."""

    def __init__(self) -> None:
        self._left = MOST_BYTES

    def add(self, size: int) -> None:
        """Count bytes.

        Raises:
            InvalidRecording: if there are too many.
        """
        self._left -= size
        if self._left < 0:
            mebibytes = MOST_BYTES // 2**20
            raise InvalidRecording(f"Sessions with more than {mebibytes} MiB of events are not replayed.")


def read_recording(runtime: Runtime, row: SessionRow) -> RecordingMessage:
    """Return the recording of a sealed session, with the places of its snapshots.

    Raises:
        InvalidRecording: if it has too many events, or is too large.
        NotFound: if the session was deleted.
        Unavailable: if a store does not answer.
    """
    if row.event_count > MOST_EVENTS:
        raise InvalidRecording(f"Sessions of more than {MOST_EVENTS:,} events are not replayed.")
    size = _Size()
    portions = EventPortions(runtime.database, runtime.lake, row.tenant, row.id)
    events: list[EventMessage] = []
    try:
        while (batch := portions.read()) is not None:
            size.add(batch.nbytes)
            events.extend(
                EventMessage(
                    event["id"], event["t_ms"], event["type"], event["frame_id"], _to_raw(event["payload"])
                )
                for event in batch.to_pylist()
            )
    finally:
        portions.close()
    frames: list[FrameMessage] = []
    for frames_batch in read_sealed_frames(runtime.lake, row, columns=_FRAME_COLUMNS):
        size.add(frames_batch.nbytes)
        frames.extend(FrameMessage(**frame) for frame in frames_batch.to_pylist())
    with runtime.database.transaction(write=False) as db:
        return RecordingMessage(row.id, events, frames, _read_tags(db, row.id))


def _to_raw(payload: str | bytes) -> msgspec.Raw:
    return msgspec.Raw(payload.encode() if isinstance(payload, str) else payload)


def _read_tags(db: DbSession, session_id: str) -> list[RecordedTag]:
    statement = select(TagRow).where(TagRow.session_id == session_id)
    rows = db.exec(statement.order_by(col(TagRow.t_ms), col(TagRow.id)))
    return [RecordedTag(row.id, row.name, row.t_ms) for row in rows]
