"""Failures of sealing: count one, then defer, set aside or divide what failed; backlog figures. Design §3.

A session is set aside only for its content. Before a failure is counted, stores and database are checked;
while one of them does not answer, nothing is counted. Spec §3.1; contract §2 (`seal_error`).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
import zstandard
from sqlalchemy import func
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import RecorderError, Unavailable
from recorder.errors.panics import convert_panics
from recorder.models.session import SessionRow
from recorder.recording.sessions import emit_session_event
from recorder.runtime import Runtime
from recorder.sealing import batches, breaker
from recorder.sealing.batches import ClaimedBatch
from recorder.sealing.breaker import MAX_SESSION_FAILURES
from recorder.sealing.lane_scheduling import LaneScheduler, LaneWork
from recorder.sealing.set_aside import lock_session_for_set_aside, requeue_set_aside_session
from recorder.storage.lake_schemas import LAYOUTS, LakeKind, LakePartition
from recorder.storage.store_regions import require_sealing_store_marks

if TYPE_CHECKING:
    from recorder.sealing.lake_rows import SessionWithLakeRows

log = logging.getLogger("recorder.sealing")

#: A batch is divided after so many failures, or after so many runs were killed while they worked on it.
_MAX_BATCH_FAILURES = 3
#: A single session is set aside after so many kills of the run that worked on it. The number is higher than
#: that of failures, since a run may be killed for another reason.
_MAX_SESSION_KILLS = 6
_KILLED = "killed"

SealErrorCode = Literal[
    "content_unreadable", "content_missing", "over_budget", "worker_killed", "rows_differ"
]


#: Errors of decoders: the stored bytes are damaged.
_DAMAGE = (zstandard.ZstdError, msgspec.MsgspecError)


class ContentError(Exception):
    """A session cannot be sealed because of its content.

    Errors of a store or of the database are `Unavailable` instead.

    Attributes:
        session_id: the session that holds the content.
        code: the kind of failure, as clients and operators see it.
        message: one sentence with the problem and what to do; never the content itself.
        fault: kind of the error if a defect or a failing part may be the cause; None if the content is.
    """

    def __init__(self, session_id: str, code: SealErrorCode, message: str, fault: str | None = None) -> None:
        super().__init__(f"{session_id}: {code}: {message}")
        self.session_id = session_id
        self.code = code
        self.message = message
        self.fault = fault

    def __reduce__(self) -> tuple[type["ContentError"], tuple[str, SealErrorCode, str, str | None]]:
        """Pickle the error by its arguments: worker processes raise it."""
        return (ContentError, (self.session_id, self.code, self.message, self.fault))


@contextmanager
def convert_to_content_errors(session_id: str) -> Iterator[None]:
    """Convert errors of the block to errors of this session's content.

    Errors of a store, of the database and of memory have other causes; they are not converted.

    Raises:
        ContentError: with `content_unreadable`, if the block raises any other error.
    """
    try:
        with convert_panics():
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
            fault=None if isinstance(error, _DAMAGE) else type(error).__name__,
        ) from error


def count_session_failure(db: DbSession, error: ContentError) -> bool:
    """Count a failed attempt to seal a session, and set it aside after the third.

    It is deferred instead if the error may be the service's and nothing can be sealed (`breaker`).

    Returns:
        Whether the session was set aside.
    """
    row = lock_session_for_set_aside(db, error.session_id)
    if row is None or row.waiting_since is None:
        return False
    log.warning("session %s cannot be sealed (%s), attempt %d", row.id, error.code, row.seal_failures + 1)
    if error.fault is not None and _count_sealing_failure(
        db, error.fault, workspace_id=row.workspace_id, session_id=row.id
    ):
        _defer_session(row)
        return False
    row.seal_failures += 1
    db.add(row)
    if row.seal_failures < MAX_SESSION_FAILURES:
        return False
    _mark_failed_session_set_aside(db, row, error.code, error.message)
    return True


def set_aside(db: DbSession, session_id: str, code: SealErrorCode, message: str) -> bool:
    """Take a waiting session out of its lane and store the reason; return False if it does not wait."""
    row = lock_session_for_set_aside(db, session_id)
    if row is None or row.waiting_since is None:
        return False
    _mark_failed_session_set_aside(db, row, code, message)
    return True


def require_stores_after_failure(runtime: Runtime) -> None:
    """Check that frames and lake can be read and written now, and are those of the first start.

    Raises:
        Unavailable: if a store does not answer, or lacks its mark.
    """
    require_sealing_store_marks(runtime.settings)
    try:
        runtime.blobs.ping()
    except Unavailable:
        raise
    except Exception as error:  # clients of object stores have errors of their own
        raise Unavailable("The store of frames") from error
    runtime.lake.ping()


def _count_sealing_failure(db: DbSession, fault: str, *, workspace_id: str, session_id: str | None) -> bool:
    """Count an error that may be the service's; return whether the breaker is open.

    When it opens, the sessions that were set aside for the same error wait again.
    """
    counted = breaker.count_breaker_failure(db, fault, workspace_id=workspace_id, session_id=session_id)
    if not counted.is_open:
        return False
    for failed_id in counted.sessions:
        row = lock_session_for_set_aside(db, failed_id)
        if row is None or row.deleted_at is not None or row.seal_error_code is None:
            continue
        requeue_set_aside_session(db, row, seal_failures=MAX_SESSION_FAILURES)
        record_audit_entry(
            db,
            Origin.system(row.workspace_id, "sealing"),
            "session.reseal",
            resource_type="session",
            resource_id=row.id,
            details={"error": fault},
        )
    return True


def _defer_session(row: SessionRow) -> None:
    """Let a session wait until another is sealed, or until its turn among the deferred ones."""
    row.seal_failures = max(MAX_SESSION_FAILURES, row.seal_failures + 1)


def _mark_failed_session_set_aside(db: DbSession, row: SessionRow, code: SealErrorCode, message: str) -> None:
    """Set a session aside, so that sealing goes on without it, and record the cause everywhere."""
    row.waiting_since = None
    row.seal_error_code, row.seal_error_message, row.seal_error_at = code, message, clock.now()
    db.add(row)
    record_audit_entry(
        db,
        Origin.system(row.workspace_id, "sealing"),
        "session.set_aside",
        resource_type="session",
        resource_id=row.id,
        details={"code": code},
    )
    if not row.has_seal_error_event:
        row.has_seal_error_event = True
        emit_session_event(
            db, row, "session.error", error={"source": "seal", "name": code, "id": None, "t_ms": None}
        )
    log.error("session %s of workspace %s is set aside: %s", row.id, row.workspace_id, code)


@dataclass(frozen=True)
class SealingBacklog:
    """Stopped sessions of the whole deployment that are not sealed."""

    #: Seconds since the oldest waiting session was stopped; None while none waits.
    oldest_waiting_s: float | None
    #: Sessions that wait to be sealed.
    waiting: int
    #: Sessions that were set aside.
    set_aside: int


def read_sealing_backlog(db: DbSession) -> SealingBacklog:
    """Count the waiting sessions and those set aside, without deleted sessions."""
    waits = select(func.count(), func.min(SessionRow.waiting_since)).where(
        col(SessionRow.waiting_since).is_not(None)
    )
    waiting, oldest = db.exec(waits).one()
    is_set_aside = (col(SessionRow.seal_error_code).is_not(None), col(SessionRow.deleted_at).is_(None))
    set_aside = db.exec(select(func.count()).where(*is_set_aside)).one()
    age_s = None if oldest is None else max(0.0, (clock.now() - oldest).total_seconds())
    return SealingBacklog(age_s, waiting, set_aside)


def must_divide(batch: ClaimedBatch) -> bool:
    """Return whether a batch must be divided instead of tried again."""
    max_kills = _MAX_BATCH_FAILURES if len(batch.session_ids) > 1 else _MAX_SESSION_KILLS
    return batch.state == "undoing" or batch.kills >= max_kills


def count_batch_failure(runtime: Runtime, scheduler: LaneScheduler, work: LaneWork, error: Exception) -> None:
    """Count a failure that cannot be assigned to one session, and release the lane."""
    log.exception("batch %d of lane %s failed", work.batch.number, work.lane.name)
    with runtime.database.transaction(write=True) as db:
        work.lease.require(db)
        row = batches.read_batch_row(db, work.batch)
        row.failures, row.ended = row.failures + 1, row.begun
        row.not_before = clock.now() + scheduler.times.batch_retry_after
        single = work.batch.session_ids[0] if len(work.batch.session_ids) == 1 else None
        is_open = _count_sealing_failure(
            db, type(error).__name__, workspace_id=work.batch.workspace_id, session_id=single
        )
        # While nothing can be sealed, repeating the batch does not help, but its halves may be sealed.
        if is_open or row.failures >= _MAX_BATCH_FAILURES:
            row.state = "undoing"
            row.last_error = type(error).__name__
        db.add(row)
        scheduler.release_lane(db, work)
    scheduler.current = None


def divide_failed_batch(runtime: Runtime, scheduler: LaneScheduler, work: LaneWork) -> None:
    """Delete the rows that a batch wrote, then divide it; set a single session aside, or defer it."""
    batch = work.batch
    if batch.state != "undoing":
        # Stored first: a run that is killed while it deletes rows must not seal the rest of them.
        with runtime.database.transaction(write=True) as db:
            work.lease.require(db)
            row = batches.read_batch_row(db, batch)
            row.state, row.last_error = "undoing", _KILLED
            db.add(row)
    delete_batch_rows(runtime, batch, batch.session_ids)
    with runtime.database.transaction(write=True) as db:
        work.lease.require(db)
        row = batches.read_batch_row(db, batch)
        if len(batch.session_ids) > 1:
            batches.split_sealing_batch(db, batch)
        else:
            row.state, row.ended = "done", row.begun
            db.add(row)
            is_open = row.last_error != _KILLED and breaker.read_open_breaker(db) is not None
            session = lock_session_for_set_aside(db, batch.session_ids[0]) if is_open else None
            if session is None:
                set_aside(db, batch.session_ids[0], *_describe_sealing_failure(row.last_error))
            elif session.waiting_since is not None:
                _defer_session(session)
        next_work = scheduler.continue_or_release(db, work)
    scheduler.current = next_work


def delete_batch_rows(runtime: Runtime, batch: ClaimedBatch, session_ids: list[str]) -> None:
    """Delete the rows of some sessions of a batch from the lake."""
    if not session_ids:
        return
    with runtime.database.transaction(write=False) as db:
        rows = select(SessionRow.workflow).where(col(SessionRow.id).in_(session_ids)).distinct()
        workflows = list(db.exec(rows))
    partitions = [LakePartition(workflow, batch.date) for workflow in workflows]
    for kind in LAYOUTS:
        runtime.lake.delete_sessions(kind, batch.tenant, partitions=partitions, session_ids=session_ids)


def find_sessions_without_rows(
    runtime: Runtime,
    batch: ClaimedBatch,
    sessions: Sequence["SessionWithLakeRows"],
    kinds: Sequence[LakeKind],
) -> set[str]:
    """Return the ids of sessions that should have rows in tables of these kinds, and have none."""
    partitions = {LakePartition(session.row.workflow, batch.date) for session in sessions}
    session_ids = [session.row.id for session in sessions]
    missing: set[str] = set()
    for kind in kinds:
        counts = runtime.lake.count_session_rows(
            kind, batch.tenant, partitions=partitions, session_ids=session_ids
        )
        for session in sessions:
            expected: dict[LakeKind, int] = {
                "events": session.event_count,
                "frames": session.frame_count,
                "steps": len(session.steps),
                "sessions": 1,
            }
            if expected[kind] and not counts[session.row.id]:
                missing.add(session.row.id)
    return missing


def _describe_sealing_failure(last_error: str | None) -> tuple[SealErrorCode, str]:
    if last_error == _KILLED:
        return "worker_killed", (
            "The process that sealed this session was killed each time. Check the operator's logs for memory "
            "limits, then reseal it."
        )
    return "content_unreadable", (
        f"Sealing this session failed each time ({last_error}). The operator's log has the details."
    )
