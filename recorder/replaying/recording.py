"""Recording of a sealed session as `recorder.replays` takes it. Design §3."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson
import zstandard
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import limits
from recorder.models.session import SessionRow, TagRow
from recorder.recording.item_reads import read_sealed_frames
from recorder.recording.session_events import EventPortions
from recorder.replays.recordings import InvalidRecording, RecordedFrame, RecordedSession, RecordedTag
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs

#: Longer sessions are no recordings of one run, and would fill the memory of the run.
MOST_EVENTS = 100_000
_FRAME_COLUMNS = ("frame_id", "t_ms", "state_tokens", "dom_object", "dom_offset", "dom_length")


def read_recording(runtime: Runtime, row: SessionRow) -> RecordedSession:
    """Return the recording of a sealed session; its snapshots are read when they are asked for.

    Raises:
        InvalidRecording: if it has too many events.
        NotFound: if the session was deleted.
        Unavailable: if a store does not answer.
    """
    if row.event_count > MOST_EVENTS:
        raise InvalidRecording(f"Sessions of more than {MOST_EVENTS:,} events are not replayed.")
    portions = EventPortions(runtime.database, runtime.lake, row.tenant, row.id)
    events: list[dict[str, Any]] = []
    try:
        while (batch := portions.read()) is not None:
            for event in batch.to_pylist():
                events.append(
                    {
                        **orjson.loads(event["payload"]),
                        "id": event["id"],
                        "t_ms": event["t_ms"],
                        "type": event["type"],
                        **({} if event["frame_id"] is None else {"frame_id": event["frame_id"]}),
                    }
                )
    finally:
        portions.close()
    frames = [
        RecordedFrame(
            frame["frame_id"],
            frame["t_ms"],
            tuple(frame["state_tokens"]),
            partial(_read_dom, runtime.blobs, frame),
        )
        for frames_batch in read_sealed_frames(runtime.lake, row, columns=_FRAME_COLUMNS)
        for frame in frames_batch.to_pylist()
    ]
    with runtime.database.transaction(write=False) as db:
        tags = _read_tags(db, row.id)
    return RecordedSession(row.id, events, frames, tags)


def _read_tags(db: DbSession, session_id: str) -> list[RecordedTag]:
    statement = select(TagRow).where(TagRow.session_id == session_id)
    rows = db.exec(statement.order_by(col(TagRow.t_ms), col(TagRow.id)))
    return [RecordedTag(row.id, row.name, row.t_ms) for row in rows]


def _read_dom(blobs: Blobs, frame: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the snapshot of a frame; None without one, or if its bytes are gone or damaged."""
    if frame["dom_object"] is None or frame["dom_offset"] is None:
        return None
    try:
        packed = blobs.get(frame["dom_object"], frame["dom_offset"], frame["dom_length"])
        size = zstandard.get_frame_parameters(packed).content_size
        if not 0 < size <= limits.DOM_BYTES:
            return None
        value = orjson.loads(zstandard.ZstdDecompressor().decompress(packed))
    except (KeyError, zstandard.ZstdError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None
