"""Circuit breaker of sealing: sessions are deferred while one error fails all of them. Decision 0033.

Failures are counted until any session is sealed. If one error fails sessions of two workspaces, or three
sessions alone, the breaker opens: no session is set aside for such an error, but deferred. All other sessions
are tried as before, so that a lane that can seal does so, which closes the breaker. Deferred sessions are
tried one at a time, with growing pauses. Decision 0033.

The state is the row of a lease, the right to try a deferred session: all runs share it.
"""

import logging
from dataclasses import dataclass

import msgspec
from sqlalchemy import update
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.models.operations import LeaseRow
from recorder.models.session import SessionRow
from recorder.retries import compute_doubling_pause
from recorder.storage.upsert import insert_if_missing

log = logging.getLogger("recorder.sealing")

#: A session that failed so often is set aside, or deferred while the breaker is open.
MAX_SESSION_FAILURES = 3
_LEASE = "seal-retry"
_MIN_WORKSPACES, _MIN_SESSIONS = 2, 3
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 1_000, 60_000


class BreakerFailures(msgspec.Struct):
    """Failures with the same error since any session was sealed."""

    error: str
    workspaces: list[str]
    #: Sessions that failed alone.
    sessions: list[str]
    is_open: bool = False


@dataclass(frozen=True)
class OpenBreaker:
    """Breaker that is open."""

    #: Type of the error, as the log names it.
    error: str
    #: Time from which one deferred session may be tried.
    retry_ms: int


def read_open_breaker(db: DbSession) -> OpenBreaker | None:
    """Return the breaker if it is open."""
    row = db.get(LeaseRow, _LEASE, populate_existing=True)
    failures = _read_breaker_failures(row)
    if row is None or failures is None or not failures.is_open:
        return None
    return OpenBreaker(failures.error, row.expires_ms)


def count_breaker_failure(
    db: DbSession, error: str, *, workspace_id: str, session_id: str | None
) -> BreakerFailures:
    """Count a failure with an error that may be the service's, and open the breaker where it is.

    Args:
        db: a write transaction.
        error: type of the error.
        workspace_id: workspace of the batch.
        session_id: the session if it failed alone.

    Returns:
        The failures since any session was sealed; while the breaker is open, with the error that opened it.
    """
    row = _lock_breaker_row(db)
    failures = _read_breaker_failures(row)
    if failures is None or (failures.error != error and not failures.is_open):
        failures = BreakerFailures(error, [], [])
    if failures.is_open:
        return failures
    if workspace_id not in failures.workspaces:
        failures.workspaces.append(workspace_id)
    if session_id is not None and session_id not in failures.sessions:
        failures.sessions.append(session_id)
    if len(failures.workspaces) >= _MIN_WORKSPACES or len(failures.sessions) >= _MIN_SESSIONS:
        failures.is_open = True
        row.fence, row.expires_ms = 0, clock.now_ms() + _FIRST_PAUSE_MS
        log.error(
            "nothing can be sealed: %s in one session after the other. No session is set aside for it until "
            "another is sealed",
            error,
        )
    row.owner = msgspec.json.encode(failures).decode()
    db.add(row)
    return failures


def is_retry_awaited(retry_ms: int, now_ms: int) -> bool:
    """Return whether it is too early to try a deferred session.

    A pause that seems longer than any was begun before the clock was set back, and is over.
    """
    return now_ms < retry_ms <= now_ms + _LONGEST_PAUSE_MS


def take_breaker_retry(db: DbSession) -> bool:
    """Take the right to try one deferred session; return False while another try is too recent.

    The pause until the next one doubles each time, up to a minute.
    """
    row = _lock_breaker_row(db)
    now_ms = clock.now_ms()
    if is_retry_awaited(row.expires_ms, now_ms):
        return False
    row.fence += 1
    pause_ms = compute_doubling_pause(row.fence, first=_FIRST_PAUSE_MS, longest=_LONGEST_PAUSE_MS)
    row.expires_ms = now_ms + round(pause_ms)
    db.add(row)
    return True


def close_breaker(db: DbSession) -> None:
    """Forget the failures, since a session was sealed; deferred sessions are tried like any other."""
    row = db.get(LeaseRow, _LEASE)
    failures = _read_breaker_failures(row)
    if row is None or failures is None:
        return
    row.owner, row.fence, row.expires_ms = "", 0, 0
    db.add(row)
    if failures.is_open:
        log.warning(
            "a session was sealed: those that were deferred because of %s are tried again", failures.error
        )
        deferred = (
            col(SessionRow.waiting_since).is_not(None),
            col(SessionRow.seal_failures) >= MAX_SESSION_FAILURES,
        )
        db.connection().execute(update(SessionRow).where(*deferred).values(seal_failures=0))


def _lock_breaker_row(db: DbSession) -> LeaseRow:
    if db.get(LeaseRow, _LEASE) is None:
        insert_if_missing(db, LeaseRow, {"name": _LEASE, "owner": "", "fence": 0, "expires_ms": 0})
    locked = select(LeaseRow).where(LeaseRow.name == _LEASE).with_for_update()
    return db.exec(locked.execution_options(populate_existing=True)).one()


def _read_breaker_failures(row: LeaseRow | None) -> BreakerFailures | None:
    return None if row is None or not row.owner else msgspec.json.decode(row.owner, type=BreakerFailures)
