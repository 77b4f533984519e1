"""Stopped sessions as they lie in SQL, read for sealing. Design §3."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow

_IDS = 500


def read_waiting(db: DbSession, session_ids: Sequence[str]) -> dict[str, SessionRow]:
    """Return the sessions that wait to be sealed, by id; those deleted or sealed since are left out."""
    rows: dict[str, SessionRow] = {}
    for part in _parts(session_ids):
        statement = select(SessionRow).where(
            col(SessionRow.id).in_(part), col(SessionRow.waiting_since).is_not(None)
        )
        rows |= {row.id: row for row in db.exec(statement)}
    return rows


def read_event_batches(db: DbSession, session_ids: Sequence[str]) -> dict[str, list[EventBatchRow]]:
    """Return the stored event batches of small sessions, by session."""
    return _group(db, EventBatchRow, session_ids)


def read_frames(db: DbSession, session_ids: Sequence[str]) -> dict[str, list[FrameRow]]:
    """Return the frames of small sessions in the order `(t_ms, frame_id)`, by session."""
    groups = _group(db, FrameRow, session_ids)
    for frames in groups.values():
        frames.sort(key=lambda frame: (frame.t_ms, frame.frame_id))
    return groups


def read_frame_places(db: DbSession, session_id: str) -> list[tuple[int, str]]:
    """Return time and id of all frames of a session, in this order."""
    statement = select(FrameRow.t_ms, FrameRow.frame_id).where(FrameRow.session_id == session_id)
    # Sorted here: databases compare texts by rules of their own.
    return sorted((t_ms, frame_id) for t_ms, frame_id in db.exec(statement))


def read_frames_named(db: DbSession, session_id: str, frame_ids: Sequence[str]) -> list[FrameRow]:
    """Return these frames of a session, in the order of the ids; frames that are gone are left out."""
    found: dict[str, FrameRow] = {}
    for part in _parts(frame_ids):
        statement = select(FrameRow).where(
            FrameRow.session_id == session_id, col(FrameRow.frame_id).in_(part)
        )
        found |= {frame.frame_id: frame for frame in db.exec(statement)}
    return [found[frame_id] for frame_id in frame_ids if frame_id in found]


def _group(db: DbSession, table: Any, session_ids: Sequence[str]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for part in _parts(session_ids):
        for row in db.exec(select(table).where(table.session_id.in_(part))):
            groups.setdefault(row.session_id, []).append(row)
    return groups


def _parts(ids: Sequence[str]) -> Iterable[list[str]]:
    return (list(ids[begin : begin + _IDS]) for begin in range(0, len(ids), _IDS))
