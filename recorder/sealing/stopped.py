"""Stopped sessions as they lie in SQL, read whole for sealing. Design §3."""

from dataclasses import dataclass
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.recording.hot_events import EventRecord, decode_batch


@dataclass(frozen=True)
class StoppedSession:
    """All that was recorded of a session; events and frames in their total order."""

    row: SessionRow
    events: list[EventRecord]
    frames: list[FrameRow]


def read_stopped(db: DbSession, session_ids: list[str]) -> list[StoppedSession]:
    """The sessions of a batch, in its order; those sealed meanwhile by another run are left out."""
    rows = db.exec(
        select(SessionRow).where(
            col(SessionRow.id).in_(session_ids), col(SessionRow.waiting_since).is_not(None)
        )
    )
    by_id = {row.id: row for row in rows}
    events = _grouped(db, EventBatchRow, list(by_id))
    frames = _grouped(db, FrameRow, list(by_id))
    return [
        StoppedSession(
            by_id[session_id],
            sorted(
                (event for batch in events.get(session_id, ()) for event in decode_batch(batch)),
                key=lambda event: (event.t_ms, event.id),
            ),
            sorted(frames.get(session_id, ()), key=lambda frame: (frame.t_ms, frame.frame_id)),
        )
        for session_id in session_ids
        if session_id in by_id
    ]


def _grouped(db: DbSession, table: Any, session_ids: list[str]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for row in db.exec(select(table).where(table.session_id.in_(session_ids))):
        groups.setdefault(row.session_id, []).append(row)
    return groups
