"""Portions of a batch's preparation: their size, and the progress that survives a kill. Design §3."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import zstandard
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder.errors import RecorderError
from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.operations import SealPortionRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.sealing.derived import MAX_STEPS
from recorder.sealing.failures import ContentError

log = logging.getLogger("recorder.sealing")

#: Raises if the caller's lease is lost; called in every transaction that writes.
Hold = Callable[[DbSession], None]

#: So long one portion waits for the digests of its pictures; the lane may be left then, while they go on.
DIGEST_WAIT_S = 0.25

_LEFTOVERS = 100


@dataclass(frozen=True)
class PortionLimits:
    """Most of one portion; a session above the first three is prepared in several."""

    events: int = 50_000
    frames: int = 2_000
    #: Bytes of event items as they are stored.
    bytes: int = 64 * 1024 * 1024
    #: Frames of a large session that are digested, and kept as one object, at a time.
    digested_frames: int = 500
    #: Rows of one file of frames of a large session.
    frame_rows: int = 20_000
    #: Events that become rows at a time.
    events_at_once: int = 4_000
    bytes_at_once: int = 4 * 1024 * 1024
    steps: int = MAX_STEPS


@contextmanager
def content_of(session_id: str) -> Iterator[None]:
    """Report what fails inside as a failure of this session's content.

    Errors of a store, of the database and of memory are not the session's: they pass.

    Raises:
        ContentError: `content_unreadable`, if anything else is raised.
    """
    try:
        yield
    except (ContentError, RecorderError, SQLAlchemyError, OSError, MemoryError):
        raise
    except Exception as error:
        log.exception("the content of session %s cannot be read", session_id)
        raise ContentError(
            session_id,
            "content_unreadable",
            f"The stored content of the session cannot be read ({type(error).__name__}). "
            "Restore the session's rows from a backup and seal it again.",
        ) from error


def read_states(db: DbSession, session_id: str, date: str) -> list[dict[str, Any]] | None:
    """Return the states of a session's portions in their order; None if they belong to another partition."""
    statement = select(SealPortionRow).where(SealPortionRow.session_id == session_id)
    rows = db.exec(statement.order_by(col(SealPortionRow.n))).all()
    if any(row.date != date for row in rows) or [row.n for row in rows] != list(range(len(rows))):
        return None
    return [_unpack(row) for row in rows]


def add_state(db: DbSession, session_id: str, n: int, date: str, state: dict[str, Any]) -> None:
    """Store the state of a finished portion."""
    packed = zstandard.ZstdCompressor(level=1).compress(orjson.dumps(state))
    db.add(SealPortionRow(session_id=session_id, n=n, date=date, state=packed))


def discard_portions(runtime: Runtime, session_id: str, hold: Hold) -> None:
    """Delete the progress of a session, objects first: a kill in between leaves rows that name them."""
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(SealPortionRow).where(SealPortionRow.session_id == session_id)).all()
    if not rows:
        return
    for row in rows:
        key = _unpack(row).get("object")
        if key is not None:
            runtime.blobs.delete(key)
    with runtime.database.transaction(write=True) as db:
        hold(db)
        db.exec(delete(SealPortionRow).where(col(SealPortionRow.session_id) == session_id))


def discard_leftovers(runtime: Runtime, hold: Hold) -> int:
    """Delete the progress of sessions that no longer wait to be sealed; return how many there were.

    Idle work: a run that is killed after its commit leaves such progress.
    """
    with runtime.database.transaction(write=False) as db:
        waiting = select(SessionRow.id).where(col(SessionRow.waiting_since).is_not(None))
        statement = select(SealPortionRow.session_id).where(col(SealPortionRow.session_id).not_in(waiting))
        session_ids = db.exec(statement.distinct().limit(_LEFTOVERS)).all()
    for session_id in session_ids:
        discard_portions(runtime, session_id, hold)
    return len(session_ids)


def _unpack(row: SealPortionRow) -> dict[str, Any]:
    state: dict[str, Any] = orjson.loads(zstandard.ZstdDecompressor().decompress(row.state))
    return state


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
