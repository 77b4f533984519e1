"""Events and frames that a tag names: whether they are there, and at which time. Contract §2 (tag)."""

import polars as pl
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import NotFound, Problem, ValidationFailed
from recorder.models.event import EventBatchRow, EventKeyRow
from recorder.models.session import SessionRow
from recorder.models.tag import TagCreate
from recorder.recording.hot_events import decode_heads, decompress
from recorder.recording.item_reads import get_frame
from recorder.storage.lake import Lake


def find_anchor_time(db: DbSession, lake: Lake, row: SessionRow, body: TagCreate) -> int | None:
    """Return the time of the event that a tag names, else of the frame; None where it names neither.

    Args:
        db: a transaction; reading is enough.
        lake: holds the rows of swept sessions.
        row: the session.
        body: names of the tag, in a checked form.

    Raises:
        ValidationFailed: if the session has no such event or frame.
        Unavailable: if the lake does not answer.
    """
    problems: list[Problem] = []
    event_t_ms = frame_t_ms = None
    if body.event_id is not None:
        event_t_ms = _find_event_time(db, lake, row, body.event_id)
        if event_t_ms is None:
            problems.append(Problem("body", "/event_id", "unknown_event", "The session has no such event."))
    if body.frame_id is not None:
        frame_t_ms = _find_frame_time(db, lake, row, body.frame_id)
        if frame_t_ms is None:
            problems.append(Problem("body", "/frame_id", "unknown_frame", "The session has no such frame."))
    if problems:
        raise ValidationFailed(problems)
    return frame_t_ms if event_t_ms is None else event_t_ms


def _find_frame_time(db: DbSession, lake: Lake, row: SessionRow, frame_id: str) -> int | None:
    try:
        return get_frame(db, lake, row, frame_id).t_ms
    except NotFound:
        return None


def _find_event_time(db: DbSession, lake: Lake, row: SessionRow, event_id: str) -> int | None:
    if not row.is_hot:
        found = lake.read_session(
            "events",
            row.tenant,
            workflow=row.workflow,
            date=row.lake_date or "",
            session_id=row.id,
            only=pl.col("event_id") == event_id,
        )
        return next(iter(found["t_ms"].to_list()), None)
    named = db.get(EventKeyRow, (row.id, event_id))
    if named is not None:
        return named.t_ms
    # Ids that the service gives rise within a batch: the one that begins last before the id may hold it.
    first_id = col(EventBatchRow.first_id)
    batches = select(EventBatchRow).where(EventBatchRow.session_id == row.id, first_id <= event_id)
    batch = db.exec(batches.order_by(first_id.desc()).limit(1)).first()
    if batch is None:
        return None
    heads = decode_heads(decompress(batch.payload), batch.first_id)
    return next((head.t_ms for head, found_id in heads if found_id == event_id), None)
