"""Deletion of one session at a user's request: soft, or at once and for good. Contract §2 (Delete)."""

import logging

from sqlmodel import Session as DbSession

from recorder import clock
from recorder.access.keys import Caller
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import NotFound, RecorderError
from recorder.governance.holds import require_unheld_session
from recorder.governance.purging.purge_rows import request_purge
from recorder.governance.purging.purge_runs import purge_session_at_once
from recorder.ids import is_id
from recorder.models.governance import PurgeRow
from recorder.models.session import SessionRow
from recorder.recording.sessions import delete_session, hide_session
from recorder.replay_service.requests.deleted_session_replays import end_replays_of_deleted_sessions
from recorder.runtime import Runtime
from recorder.tenant import Tenant

log = logging.getLogger("recorder.governance")


def delete_session_softly(runtime: Runtime, origin: Origin, tenant: Tenant, session_id: str) -> None:
    """Hide a session at once, and end its open replays; its data are purged after 30 days.

    Raises:
        NotFound: if there is no such session, or it is deleted already.
    """
    with runtime.database.transaction(write=True) as db:
        delete_session(db, origin, tenant, session_id)
    try:
        end_replays_of_deleted_sessions(runtime.database, session_id)
    except RecorderError:
        # The session is deleted: the next replay drain run ends them.
        log.warning("the replays of session %s are not ended yet", session_id, exc_info=True)


def delete_session_for_good(runtime: Runtime, origin: Origin, caller: Caller, session_id: str) -> None:
    """Delete a session, hidden or not: its rows and objects are gone on return, its lake rows soon after.

    Raises:
        InsufficientScope: if the caller is no administrator.
        NotFound: if there is no such session, or it is purged already.
        InvalidState: if it is under a legal hold.
        Unavailable: if a store does not answer. The session is hidden, and the purge goes on; the same call
            may be repeated.
    """
    caller.scope.require("admin")
    with runtime.database.transaction(write=True) as db:
        purge = _find_unfinished_deletion(db, caller.tenant, session_id) or _begin_session_deletion_purge(
            db, origin, caller.tenant, session_id
        )
    purge_session_at_once(runtime, purge)


def _find_unfinished_deletion(db: DbSession, tenant: Tenant, session_id: str) -> PurgeRow | None:
    """Return the purge of a hard delete whose rows and objects could not be removed yet."""
    purge = db.get(PurgeRow, session_id) if is_id(session_id, "ses") else None
    if purge is None or purge.tenant != tenant:
        return None
    return purge if (purge.cause, purge.step) == ("hard_delete", "content") else None


def _begin_session_deletion_purge(db: DbSession, origin: Origin, tenant: Tenant, session_id: str) -> PurgeRow:
    if not is_id(session_id, "ses"):
        raise NotFound("session")
    row = db.get(SessionRow, session_id, with_for_update=True, populate_existing=True)
    if row is None or row.tenant != tenant or db.get(PurgeRow, session_id) is not None:
        raise NotFound("session")
    require_unheld_session(db, row)
    now = clock.now()
    if row.deleted_at is None:
        hide_session(db, row, at=now)
    record_audit_entry(
        db, origin, "session.delete", resource_type="session", resource_id=row.id, details={"hard": True}
    )
    return request_purge(db, row, "hard_delete", at=now)
