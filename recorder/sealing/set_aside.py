"""Sessions that were set aside: their list, and sealing them again. Spec §3.1."""

from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import InvalidState, NotFound
from recorder.models.session import SessionRow
from recorder.storage.deployment import queue_session_in_deployment_slot
from recorder.tenant import Tenant


@dataclass(frozen=True)
class SetAsideSession:
    """Session that was set aside, with the reason."""

    session_id: str
    tenant: Tenant
    workflow: str
    code: str
    message: str
    at: datetime


def list_sessions_set_aside(db: DbSession, workspace_id: str | None = None) -> list[SetAsideSession]:
    """Return the sessions that were set aside, of one workspace or of all, the oldest first."""
    statement = select(SessionRow).where(
        col(SessionRow.seal_error_code).is_not(None), col(SessionRow.deleted_at).is_(None)
    )
    if workspace_id is not None:
        statement = statement.where(SessionRow.workspace_id == workspace_id)
    return [
        SetAsideSession(
            row.id,
            row.tenant,
            row.workflow,
            row.seal_error_code or "",
            row.seal_error_message or "",
            row.seal_error_at or row.created_at,
        )
        for row in db.exec(statement.order_by(col(SessionRow.seal_error_at), col(SessionRow.id)))
    ]


def reseal(db: DbSession, session_id: str) -> SessionRow:
    """Queue a session that was set aside, so that it is sealed again.

    Raises:
        NotFound: if there is no such session.
        InvalidState: if it was not set aside.
    """
    row = lock_session_for_set_aside(db, session_id)
    if row is None or row.deleted_at is not None:
        detail = "No session has this id; `recorder sessions quarantined` lists those that were set aside."
        raise NotFound("session", detail)
    if row.seal_error_code is None:
        raise InvalidState(row.status, needed="session must have been set aside")
    requeue_set_aside_session(db, row)
    record_audit_entry(
        db,
        Origin.operator(row.workspace_id),
        "session.reseal",
        resource_type="session",
        resource_id=row.id,
    )
    return row


def requeue_set_aside_session(db: DbSession, row: SessionRow, *, seal_failures: int = 0) -> None:
    """Queue a session for sealing again, without the error for which it was set aside."""
    row.seal_error_code = row.seal_error_message = row.seal_error_at = None
    row.seal_failures = seal_failures
    queue_session_in_deployment_slot(db, row, clock.now())


def lock_session_for_set_aside(db: DbSession, session_id: str) -> SessionRow | None:
    """Return a session as it is stored now, locked until the transaction ends; None if there is none."""
    statement = select(SessionRow).where(SessionRow.id == session_id).with_for_update()
    return db.exec(statement.execution_options(populate_existing=True)).one_or_none()
