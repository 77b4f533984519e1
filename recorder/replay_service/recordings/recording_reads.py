"""Recordings of sealed sessions, read for replays: large ones in portions, small ones together."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.event import EventBatchRow
from recorder.models.session import SessionRow, TagRow
from recorder.recording.item_reads import read_sealed_frames
from recorder.recording.session_events import SessionEventPortions
from recorder.recording.stored_events import EventRecord, decode_stored_event_batch
from recorder.replay_service.recordings.recording_messages import EventMessage, FrameMessage, RecordingMessage
from recorder.replays.recorded_session import InvalidRecording, RecordedTag
from recorder.runtime import Runtime
from recorder.storage.lake_reads import read_lake_sessions
from recorder.tenant import Tenant

#: Longer sessions are no recordings of one run, and would fill the memory of the run.
MOST_EVENTS = 100_000
MOST_BYTES = 64 * 1024 * 1024
#: Sessions that are no larger are read together.
_SMALL_EVENTS, _SMALL_BYTES, _SMALL_FRAMES, _SMALL_TAGS = 1_000, 512 * 1024, 200, 500
#: Bytes of events, and frames, after which no further session is read with others where an order is given.
_TOGETHER_BYTES, _TOGETHER_FRAMES = 2 * 1024 * 1024, 2_000
#: To read sessions that are larger takes seconds.
_HUGE_EVENTS, _HUGE_BYTES, _HUGE_FRAMES = 10_000, 4 * 1024 * 1024, 1_000
_EVENT_COLUMNS = ("event_id", "t_ms", "type", "frame_id", "payload")
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
    """Return the recording of a sealed session, with the locations of its snapshots.

    Raises:
        InvalidRecording: if it has too many events, or is too large.
        NotFound: if the session was deleted.
        Unavailable: if a store does not answer.
    """
    if row.event_count > MOST_EVENTS:
        raise InvalidRecording(f"Sessions of more than {MOST_EVENTS:,} events are not replayed.")
    size = _Size()
    portions = SessionEventPortions(runtime.database, runtime.lake, row.tenant, row.id)
    events: list[EventMessage] = []
    try:
        while (batch := portions.read()) is not None:
            size.add(batch.nbytes)
            events.extend(_make_recording_event(event.values()) for event in batch.to_pylist())
    finally:
        portions.close()
    frames: list[FrameMessage] = []
    for frames_batch in read_sealed_frames(runtime.lake, row, columns=_FRAME_COLUMNS):
        size.add(frames_batch.nbytes)
        frames.extend(FrameMessage(**frame) for frame in frames_batch.to_pylist())
    with runtime.database.transaction(write=False) as db:
        return RecordingMessage(row.id, events, frames, _read_recording_tags(db, [row.id])[row.id])


@dataclass
class SessionsWithRecordings:
    """Sessions by id that are not deleted, and the recordings of the small ones."""

    rows: dict[str, SessionRow] = field(default_factory=dict)
    recordings: dict[str, RecordingMessage] = field(default_factory=dict)


def read_sessions_with_recordings(
    runtime: Runtime, session_ids: Collection[str], *, first_only: bool = False
) -> SessionsWithRecordings:
    """Return sealed sessions, and the recordings of the small ones with a few queries for all of them.

    Args:
        runtime: the deployment.
        session_ids: the sessions, in the order in which they are needed.
        first_only: leave out the recordings after a session that is not small, and those that are too much to
            be held together; at least the first two are read.

    Raises:
        Unavailable: if a store does not answer.
    """
    with runtime.database.transaction(write=False) as db:
        statement = select(SessionRow).where(
            col(SessionRow.id).in_(session_ids), col(SessionRow.deleted_at).is_(None)
        )
        rows = {row.id: row for row in db.exec(statement)}
        ordered = [rows[session_id] for session_id in session_ids if session_id in rows]
        small = [row for row in (_take_first(ordered) if first_only else ordered) if is_small_session(row)]
        tags = _read_recording_tags(db, [row.id for row in small])
        events = _read_hot_recording_events(db, [row.id for row in small if row.is_hot])
    swept = [row for row in small if not row.is_hot]
    for row_id, read in _read_lake_recording_rows(runtime, "events", swept, _EVENT_COLUMNS).items():
        events[row_id] = [_make_recording_event(event.values()) for event in read]
    frames = _read_lake_recording_rows(runtime, "frames", small, _FRAME_COLUMNS)
    recordings = {
        row.id: RecordingMessage(
            row.id, events[row.id], [FrameMessage(**frame) for frame in frames[row.id]], tags[row.id]
        )
        for row in small
    }
    return SessionsWithRecordings(rows, recordings)


def is_huge_recording(row: SessionRow) -> bool:
    """Return whether a session is so large that others would wait while it is read."""
    return row.event_count > _HUGE_EVENTS or row.event_bytes > _HUGE_BYTES or row.frame_count > _HUGE_FRAMES


def _take_first(rows: Sequence[SessionRow]) -> list[SessionRow]:
    """Return the first sessions whose recordings are held together."""
    taken: list[SessionRow] = []
    size = frames = 0
    for row in rows:
        size, frames = size + row.event_bytes, frames + row.frame_count
        is_too_much = size > _TOGETHER_BYTES or frames > _TOGETHER_FRAMES
        if not is_small_session(row) or (is_too_much and len(taken) >= 2):
            break
        taken.append(row)
    return taken


def is_small_session(row: SessionRow) -> bool:
    """Return whether a session is read together with others."""
    return (
        row.event_count <= _SMALL_EVENTS
        and row.event_bytes <= _SMALL_BYTES
        and row.frame_count <= _SMALL_FRAMES
        and row.tag_count <= _SMALL_TAGS
    )


def _read_hot_recording_events(db: DbSession, session_ids: Collection[str]) -> dict[str, list[EventMessage]]:
    """Return the events of sessions that are in SQL by `(t_ms, id)`."""
    records: defaultdict[str, list[EventRecord]] = defaultdict(list)
    statement = select(EventBatchRow).where(col(EventBatchRow.session_id).in_(session_ids))
    for batch in db.exec(statement.order_by(col(EventBatchRow.first_position))):
        records[batch.session_id] += decode_stored_event_batch(batch)
    events: defaultdict[str, list[EventMessage]] = defaultdict(list)
    for session_id, read in records.items():
        read.sort(key=lambda record: (record.t_ms, record.id))
        events[session_id] = [
            _make_recording_event((record.id, record.t_ms, record.type, record.frame_id, record.payload))
            for record in read
        ]
    return events


def _read_lake_recording_rows(
    runtime: Runtime, kind: Literal["events", "frames"], rows: Iterable[SessionRow], columns: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the lake rows of small sessions in their order, with one read of each partition."""
    partitions: defaultdict[tuple[Tenant, str, str], list[str]] = defaultdict(list)
    for row in rows:
        partitions[row.tenant, row.workflow, row.lake_date or ""].append(row.id)
    items: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for (tenant, workflow, date), session_ids in partitions.items():
        table = runtime.lake.stored_table(kind, tenant)
        names = ("session_id", *columns)
        for batch in read_lake_sessions(table, kind, workflow, date, session_ids, columns=names):
            for item in batch.to_pylist():
                items[item.pop("session_id")].append(item)
    return items


def _make_recording_event(values: Iterable[Any]) -> EventMessage:
    """Return an event from its values, in the order of `_EVENT_COLUMNS`."""
    event_id, t_ms, type, frame_id, payload = values
    return EventMessage(event_id, t_ms, type, frame_id, _make_raw_recording_data(payload))


def _make_raw_recording_data(payload: str | bytes) -> msgspec.Raw:
    return msgspec.Raw(payload.encode() if isinstance(payload, str) else payload)


def _read_recording_tags(db: DbSession, session_ids: Collection[str]) -> dict[str, list[RecordedTag]]:
    columns = select(TagRow.session_id, TagRow.id, TagRow.name, TagRow.t_ms)
    statement = columns.where(col(TagRow.session_id).in_(session_ids))
    tags: defaultdict[str, list[RecordedTag]] = defaultdict(list)
    for session_id, tag_id, name, t_ms in db.exec(statement.order_by(col(TagRow.t_ms), col(TagRow.id))):
        tags[session_id].append(RecordedTag(tag_id, name, t_ms))
    return tags
