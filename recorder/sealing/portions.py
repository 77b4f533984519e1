"""Portions of a preparation: size limits, rows read from SQL for one portion, stored progress. Design §3."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import zstandard
from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.operations import SealPortionRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.sealing.derived_rows import MAX_STEPS
from recorder.sealing.sweep_comparison import log_sweep_error

#: Raises `LeaseLost` if the caller's lease is lost; called in every transaction that writes.
RequireLease = Callable[[DbSession], None]

_LEFTOVER_SESSIONS = 100


@dataclass(frozen=True)
class PortionLimits:
    """Size of one portion; a session above the first four limits is prepared in several portions."""

    events: int = 50_000
    frames: int = 2_000
    #: Width × height of all pictures, as their headers state it: a small picture may have many.
    pixels: int = 1_000_000_000
    #: Bytes of event items as they are stored.
    bytes: int = 64 * 1024 * 1024
    #: Frames of a large session that are digested, and kept as one object, at a time.
    digested_frames: int = 500
    digested_pixels: int = 500_000_000
    #: Rows of one file of frames of a large session.
    frame_rows: int = 20_000
    #: Events that become rows at a time.
    events_at_once: int = 4_000
    bytes_at_once: int = 4 * 1024 * 1024
    steps: int = MAX_STEPS
    #: Seconds that one portion waits for the digests of its pictures. After that the lane may be released
    #: while the digests go on.
    digest_wait_s: float = 0.25


def read_portion_states(db: DbSession, session_id: str, date: str) -> list[dict[str, Any]] | None:
    """Return the states of a session's portions in order; None if they belong to another partition."""
    statement = select(SealPortionRow).where(SealPortionRow.session_id == session_id)
    rows = db.exec(statement.order_by(col(SealPortionRow.n))).all()
    if any(row.date != date for row in rows) or [row.n for row in rows] != list(range(len(rows))):
        return None
    return [_unpack_portion_state(row) for row in rows]


def store_portion_state(db: DbSession, session_id: str, n: int, date: str, state: dict[str, Any]) -> None:
    """Store the state of a finished portion."""
    packed = zstandard.ZstdCompressor(level=1).compress(orjson.dumps(state))
    db.add(SealPortionRow(session_id=session_id, n=n, date=date, state=packed))


def discard_portions(runtime: Runtime, session_id: str, require_lease: RequireLease) -> None:
    """Delete the progress of a session: objects first, since after a kill the rows still name them."""
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(SealPortionRow).where(SealPortionRow.session_id == session_id)).all()
    if not rows:
        return
    for row in rows:
        key = _unpack_portion_state(row).get("object")
        if key is not None:
            runtime.blobs.delete(key)
    with runtime.database.transaction(write=True) as db:
        require_lease(db)
        db.exec(delete(SealPortionRow).where(col(SealPortionRow.session_id) == session_id))


def discard_leftover_portions(runtime: Runtime, require_lease: RequireLease) -> int:
    """Delete the progress of sessions that no longer wait to be sealed; return the number of sessions.

    A run that is killed after its commit leaves such progress. What cannot be deleted is left to the next
    call, and stops nothing else.

    Raises:
        LeaseLost: if another run took over.
    """
    with runtime.database.transaction(write=False) as db:
        waiting = select(SessionRow.id).where(col(SessionRow.waiting_since).is_not(None))
        statement = select(SealPortionRow.session_id).where(col(SealPortionRow.session_id).not_in(waiting))
        session_ids = db.exec(statement.distinct().limit(_LEFTOVER_SESSIONS)).all()
    discarded = 0
    for session_id in session_ids:
        with log_sweep_error(f"the deletion of sealing progress of session {session_id}"):
            discard_portions(runtime, session_id, require_lease)
            discarded += 1
    return discarded


def _unpack_portion_state(row: SealPortionRow) -> dict[str, Any]:
    state: dict[str, Any] = orjson.loads(zstandard.ZstdDecompressor().decompress(row.state))
    return state


#: Ids in one statement.
_IDS = 500


def read_waiting_rows_for_portions(db: DbSession, session_ids: Sequence[str]) -> dict[str, SessionRow]:
    """Return the sessions among these that still wait to be sealed, by id."""
    rows: dict[str, SessionRow] = {}
    for part in _split_session_ids(session_ids):
        statement = select(SessionRow).where(
            col(SessionRow.id).in_(part), col(SessionRow.waiting_since).is_not(None)
        )
        rows |= {row.id: row for row in db.exec(statement)}
    return rows


def read_event_batches_for_portion(
    db: DbSession, session_ids: Sequence[str]
) -> dict[str, list[EventBatchRow]]:
    """Return the stored event batches of small sessions, by session."""
    return _read_hot_rows_for_portion(db, EventBatchRow, session_ids)


def read_frames_for_portion(db: DbSession, session_ids: Sequence[str]) -> dict[str, list[FrameRow]]:
    """Return the frames of small sessions in the order `(t_ms, frame_id)`, by session."""
    groups = _read_hot_rows_for_portion(db, FrameRow, session_ids)
    for frames in groups.values():
        frames.sort(key=lambda frame: (frame.t_ms, frame.frame_id))
    return groups


def read_frame_times_for_portions(db: DbSession, session_id: str) -> list[tuple[int, str, int]]:
    """Return time, id and number of pixels of all frames of a session, in this order."""
    pixels = col(FrameRow.width) * col(FrameRow.height)
    statement = select(FrameRow.t_ms, FrameRow.frame_id, pixels).where(FrameRow.session_id == session_id)
    # Sorted here: the databases' collations order texts differently.
    return sorted((t_ms, frame_id, n) for t_ms, frame_id, n in db.exec(statement))


def count_pixels_for_portions(db: DbSession, session_ids: Sequence[str]) -> dict[str, int]:
    """Return the pixels of all frames of each session that has any."""
    pixels = func.sum(col(FrameRow.width) * col(FrameRow.height))
    counts: dict[str, int] = {}
    for part in _split_session_ids(session_ids):
        statement = select(FrameRow.session_id, pixels).where(col(FrameRow.session_id).in_(part))
        counts |= {key: int(n) for key, n in db.exec(statement.group_by(col(FrameRow.session_id)))}
    return counts


def read_named_frames_for_portion(db: DbSession, session_id: str, frame_ids: Sequence[str]) -> list[FrameRow]:
    """Return the frames of a session with these ids, in this order, without deleted frames."""
    frames: dict[str, FrameRow] = {}
    for part in _split_session_ids(frame_ids):
        statement = select(FrameRow).where(
            FrameRow.session_id == session_id, col(FrameRow.frame_id).in_(part)
        )
        frames |= {frame.frame_id: frame for frame in db.exec(statement)}
    return [frames[frame_id] for frame_id in frame_ids if frame_id in frames]


def _read_hot_rows_for_portion(db: DbSession, table: Any, session_ids: Sequence[str]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for part in _split_session_ids(session_ids):
        for row in db.exec(select(table).where(table.session_id.in_(part))):
            groups.setdefault(row.session_id, []).append(row)
    return groups


def _split_session_ids(ids: Sequence[str]) -> Iterable[list[str]]:
    return (list(ids[begin : begin + _IDS]) for begin in range(0, len(ids), _IDS))
