"""Reading a session back: the same events and frames from the hot rows and from the lake. Contract §2, §3."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import orjson
import polars as pl
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import limits
from recorder.errors import NotFound
from recorder.models.frame import Frame, FrameRow
from recorder.models.session import FramesSummary, SessionDetail, SessionRow
from recorder.recording.hot_events import EventRecord, Position, read_hot_events
from recorder.recording.sessions import find_session, read_metadata, to_wire
from recorder.recording.tags import list_tags
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import Kind

#: Events that are held at once where all are asked for.
EVENTS_PART = 1_000


def list_events(
    db: DbSession, lake: Lake, row: SessionRow, *, after: Position | None, limit: int | None
) -> list[EventRecord]:
    """The events of a session by `(t_ms, id)`, from behind `after` on.

    Args:
        limit: at most so many; None for all.
    """
    if row.is_hot:
        return read_hot_events(db, row.id, after=after, limit=limit)
    return list(islice(_lake_events(lake, row, after), limit))


def follow_events(
    database: Database, lake: Lake, row: SessionRow, first: list[EventRecord]
) -> Iterator[list[EventRecord]]:
    """All events of a session in parts, each hot one read in a transaction of its own.

    A session that is swept meanwhile goes on in the lake: its order is the same.

    Args:
        first: its first `EVENTS_PART` events, or all if they are fewer.

    Raises:
        NotFound: if the session is deleted meanwhile.
    """
    part = first
    yield part
    while len(part) == EVENTS_PART:
        after = (part[-1].t_ms, part[-1].id)
        with database.transaction(write=False) as db:
            row = find_session(db, row.workspace_id, row.mode, row.id)
            part = read_hot_events(db, row.id, after=after, limit=EVENTS_PART) if row.is_hot else []
        if not row.is_hot:
            yield from _in_parts(_lake_events(lake, row, after))
            return
        yield part


def list_frames(
    db: DbSession, lake: Lake, row: SessionRow, *, after: Position | None, limit: int | None
) -> list[Frame]:
    """The frames of a session by `(t_ms, id)`, from behind `after` on; `limit` as with the events."""
    frames = [wire_frame(stored) for stored in _stored_frames(db, lake, row)]
    if after is not None:
        frames = [frame for frame in frames if (frame.t_ms, frame.id) > after]
    return frames[:limit]


def get_frame(db: DbSession, lake: Lake, row: SessionRow, frame_id: str) -> Frame:
    """One frame's metadata.

    Raises:
        NotFound: if the session has no such frame.
    """
    return wire_frame(_find_frame(db, lake, row, frame_id))


def read_image(db: DbSession, lake: Lake, blobs: Blobs, row: SessionRow, frame_id: str) -> tuple[bytes, str]:
    """The bytes of a frame's picture and their content type.

    Raises:
        NotFound: if the session has no such frame, or its bytes are gone.
    """
    stored = _find_frame(db, lake, row, frame_id)
    try:
        return blobs.get(stored.object, stored.offset, stored.length), stored.content_type
    except KeyError as error:
        raise NotFound("frame") from error


def describe_session(db: DbSession, lake: Lake, row: SessionRow, include: frozenset[str]) -> SessionDetail:
    """The session with the related data that was asked for; what was not asked for stays unset."""
    members: dict[str, Any] = dict(to_wire(row, read_metadata(db, row)))
    if "events" in include:
        records = list_events(db, lake, row, after=None, limit=limits.EMBEDDED_EVENTS + 1)
        members["events"] = [orjson.loads(record.as_json()) for record in records[: limits.EMBEDDED_EVENTS]]
        members["events_truncated"] = len(records) > limits.EMBEDDED_EVENTS
        members["events_url"] = f"/v1/sessions/{row.id}/events"
    if "tags" in include:
        members["tags"] = list_tags(db, row.id, after=None, limit=limits.EMBEDDED_EVENTS)
    if "frames_summary" in include:
        members["frames_summary"] = _summarize(db, lake, row)
    return SessionDetail(**members)


def _summarize(db: DbSession, lake: Lake, row: SessionRow) -> FramesSummary:
    frames = [wire_frame(stored) for stored in _stored_frames(db, lake, row)]
    sizes = [(frame.width * frame.height, frame.width, frame.height) for frame in frames]
    largest = max(sizes, default=None)
    return FramesSummary(
        count=len(frames),
        keyframes=_count_keyframes(lake, row),
        bytes=sum(frame.bytes for frame in frames),
        first_t_ms=frames[0].t_ms if frames else None,
        last_t_ms=frames[-1].t_ms if frames else None,
        width=largest[1] if largest else None,
        height=largest[2] if largest else None,
        content_types=sorted({frame.content_type for frame in frames}),
        storage={"hot": len(frames), "cold": 0},
    )


def _count_keyframes(lake: Lake, row: SessionRow) -> int | None:
    """Keyframes are told apart at seal; before it their number is not known."""
    if row.status != "sealed":
        return None
    return sum(1 for _ in _lake_rows(lake, "frames", row, only=pl.col("is_keyframe")))


def _find_frame(db: DbSession, lake: Lake, row: SessionRow, frame_id: str) -> FrameRow:
    if row.is_hot:
        stored = db.get(FrameRow, (row.id, frame_id))
    else:
        found = _lake_rows(lake, "frames", row, only=pl.col("frame_id") == frame_id)
        stored = next((_frame(frame) for frame in found), None)
    if stored is None:
        raise NotFound("frame")
    return stored


def _stored_frames(db: DbSession, lake: Lake, row: SessionRow) -> list[FrameRow]:
    if not row.is_hot:
        return [_frame(frame) for frame in _lake_rows(lake, "frames", row)]
    rows = db.exec(select(FrameRow).where(col(FrameRow.session_id) == row.id)).all()
    # Sorted here, not in SQL: databases differ in how they order letters.
    return sorted(rows, key=lambda frame: (frame.t_ms, frame.frame_id))


def _lake_events(lake: Lake, row: SessionRow, after: Position | None) -> Iterator[EventRecord]:
    for stored in _lake_rows(lake, "events", row, only=_not_before(after)):
        record = _event(stored)
        if after is None or (record.t_ms, record.id) > after:
            yield record


def _in_parts(records: Iterator[EventRecord]) -> Iterator[list[EventRecord]]:
    while part := list(islice(records, EVENTS_PART)):
        yield part


def _lake_rows(
    lake: Lake, kind: Kind, row: SessionRow, *, only: pl.Expr | None = None
) -> Iterator[dict[str, Any]]:
    rows: pl.DataFrame = lake.read_session(
        kind,
        row.workspace_id,
        row.mode,
        workflow=row.workflow,
        date=row.lake_date or "",
        session_id=row.id,
        only=only,
    )
    return rows.iter_rows(named=True)


def _not_before(after: Position | None) -> pl.Expr | None:
    return None if after is None else pl.col("t_ms") >= after[0]


def _event(row: dict[str, Any]) -> EventRecord:
    return EventRecord(row["t_ms"], row["event_id"], row["type"], row["frame_id"], row["payload"].encode())


def _frame(row: dict[str, Any]) -> FrameRow:
    """A lake row in the form of the hot index row (its stream position is not kept)."""
    rects = orjson.loads(row["rects"]) if row["rects"] else {}
    shared = FrameRow.model_fields.keys() & row.keys()
    return FrameRow(position=0, **{name: row[name] for name in shared}, **rects)


def wire_frame(row: FrameRow) -> Frame:
    """The frame object of an index row."""
    shared = {name: getattr(row, name) for name in Frame.model_fields.keys() & FrameRow.model_fields.keys()}
    return Frame(id=row.frame_id, has_dom=row.dom_offset is not None, **shared)
