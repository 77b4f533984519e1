"""Sessions: created, started, found, deleted; `session_stops` ends them. Spec §3.1, §4.1; contract §2."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import orjson
from sqlalchemy import case, literal
from sqlmodel import Session as DbSession
from sqlmodel import col, select, update

from recorder import clock, limits
from recorder.access.quota import require_quota_minutes
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import (
    InvalidState,
    InvalidTime,
    MetadataTooLarge,
    NotFound,
    ValidationFailed,
)
from recorder.ids import is_id, new_timed_id
from recorder.masking.masker import Changes
from recorder.memory.storage import graph_store as graph
from recorder.memory.storage.session_paths import read_path_id
from recorder.models.session import (
    Actor,
    Session,
    SessionCreate,
    SessionMetadataRow,
    SessionRow,
    SessionStatus,
    SessionStatusRow,
)
from recorder.models.workflow import WorkflowRow
from recorder.recording.item_masking import mask_session
from recorder.recording.new_workflows import count_session_in_workflow
from recorder.storage.conditions import in_tenant
from recorder.storage.database import note_change
from recorder.tenant import Tenant
from recorder.webhooks.outbox import add_outbox_event

_TEST_LIFE = timedelta(days=limits.TEST_SESSION_DAYS)
_SOFT_DELETED = timedelta(days=limits.SOFT_DELETE_DAYS)


def create_session(
    db: DbSession,
    tenant: Tenant,
    body: SessionCreate,
    changed: Changes | None = None,
    *,
    origin: Literal["replay"] | None = None,
) -> Session:
    """Make a session, and start it where asked to; its workflow appears with the first one.

    Args:
        db: a transaction.
        tenant: workspace and mode.
        body: body of the request.
        changed: the texts that masking changes, see `make_session_text_to_mask`.
        origin: `replay` for the recording of a live replay, which costs no captured minutes.

    Raises:
        MetadataTooLarge: if the metadata is over 16,384 bytes of compact JSON.
        InvalidTime: if `started_at` is in the future.
        ValidationFailed: if `started_at` comes without `start`.
        QuotaExceeded: if no captured minutes are left.
        LimitReached: if its workflow would be one more than a workspace may have.
    """
    check_new_session(body)
    if origin is None:
        require_quota_minutes(db, tenant)
    body = mask_session(changed, body) if changed else body
    session_id, created_at = new_timed_id("ses")
    row = SessionRow(
        id=session_id,
        workspace_id=tenant.workspace_id,
        mode=tenant.mode,
        workflow=body.workflow,
        status="created",
        actor_id=body.actor.id if body.actor else None,
        actor_kind=body.actor.kind if body.actor else None,
        created_at=created_at,
        purge_after=created_at + _TEST_LIFE if tenant.mode == "test" else None,
        is_import=body.started_at is not None,
        origin=origin,
    )
    db.add(row)
    db.add(SessionMetadataRow(session_id=session_id, metadata_=body.metadata))
    count_session_in_workflow(db, row)
    change_session_status(db, row, "created", created_at)
    emit_session_event(db, row, "session.created", metadata=body.metadata)
    if body.start:
        _start_session(db, row, body.started_at or created_at, metadata=body.metadata)
    return session_to_wire(row, body.metadata)


def start_session(db: DbSession, tenant: Tenant, session_id: str) -> Session:
    """Let a created session record; one that records already stays as it is.

    Raises:
        NotFound: if there is no such session.
        InvalidState: if it is stopped or sealed.
        QuotaExceeded: if no captured minutes are left.
    """
    row = find_session(db, tenant, session_id, lock=True)
    if row.status == "created":
        if _is_session_charged(row):
            require_quota_minutes(db, tenant)
        _start_session(db, row, clock.now(), metadata=read_session_metadata(db, row))
    elif row.status != "recording":
        raise InvalidState(
            row.status,
            needed="session must be created to be started",
            remedy='Create a new session with "start": true.',
        )
    return session_to_wire(row, read_session_metadata(db, row))


def delete_session(db: DbSession, origin: Origin, tenant: Tenant, session_id: str) -> None:
    """Take a session out of every read, list and statistic at once; a later purge removes its data.

    Raises:
        NotFound: if there is no such session, or it is deleted already.
    """
    row = find_session(db, tenant, session_id, lock=True)
    hide_session(db, row, at=clock.now())
    record_audit_entry(
        db, origin, "session.delete", resource_type="session", resource_id=row.id, details={"hard": False}
    )


def hide_session(db: DbSession, row: SessionRow, *, at: datetime, is_counted: bool = False) -> None:
    """Take a visible session, whose row is locked, out of every read and list.

    Args:
        db: a write transaction.
        row: the session.
        at: time of the deletion.
        is_counted: leave it in the statistics of its memory graph, which stay when data expire.
    """
    if row.status == "sealed" and not is_counted:
        graph.remove_session_from_graph(db, row)
    hide_sessions_keep_statistics(db, [row.id], at=at)
    db.refresh(row)


def hide_sessions_keep_statistics(db: DbSession, session_ids: Collection[str], *, at: datetime) -> None:
    """Take those sessions that are visible out of every read and list, but not out of statistics.

    Args:
        db: a write transaction that holds the sessions' rows; loaded rows of them keep their values.
        session_ids: the sessions.
        at: time of the deletion.
    """
    session = SessionRow
    is_visible = (col(session.id).in_(session_ids), col(session.deleted_at).is_(None))
    graph_of = (session.workspace_id, session.mode, session.workflow)
    visible = db.exec(select(session.id, *graph_of).where(*is_visible)).all()
    purge_after = col(session.purge_after)
    last = literal(at + _SOFT_DELETED, SessionRow.__table__.c.purge_after.type)  # type: ignore[attr-defined]
    values = {
        "deleted_at": at,
        "waiting_since": None,
        # A test session goes when it would have gone anyway, where that is sooner.
        "purge_after": case((purge_after < last, purge_after), else_=last),
    }
    db.connection().execute(update(session).where(*is_visible).values(values))
    for session_id, *_ in visible:
        note_change(db, session, session_id)
    workflows = Counter((workspace_id, mode, workflow) for _, workspace_id, mode, workflow in visible)
    # Sorted, since each of their rows is locked.
    for (workspace_id, mode, workflow), count in sorted(workflows.items()):
        scope_columns = {"workspace_id": workspace_id, "mode": mode, "workflow": workflow}
        left = {"session_count": col(WorkflowRow.session_count) - count}
        db.exec(update(WorkflowRow).filter_by(**scope_columns).values(left))


def find_session(db: DbSession, tenant: Tenant, session_id: str, *, lock: bool = False) -> SessionRow:
    """Return the row of a session that the caller may see.

    Args:
        db: a transaction.
        tenant: workspace and mode.
        session_id: id of the session.
        lock: hold the row until the transaction ends, since it will be changed.

    Raises:
        NotFound: if it is missing, deleted, or of another workspace or mode.
    """
    if not is_id(session_id, "ses"):
        raise NotFound("session")
    statement = select(SessionRow).where(
        SessionRow.id == session_id,
        *in_tenant(SessionRow, tenant),
        col(SessionRow.deleted_at).is_(None),
    )
    row = db.exec(statement.with_for_update() if lock else statement).one_or_none()
    if row is None:
        raise NotFound("session")
    return row


def find_sessions(
    db: DbSession, tenant: Tenant, session_ids: Collection[str], *, lock: bool = False
) -> Sequence[SessionRow]:
    """Return the rows of those sessions that the caller may see, in the order of their ids.

    Args:
        db: a transaction.
        tenant: workspace and mode.
        session_ids: ids of the sessions.
        lock: hold the rows until the transaction ends, since they will be changed.
    """
    possible = [session_id for session_id in session_ids if is_id(session_id, "ses")]
    if not possible:
        return []
    statement = (
        select(SessionRow)
        .where(
            col(SessionRow.id).in_(possible),
            *in_tenant(SessionRow, tenant),
            col(SessionRow.deleted_at).is_(None),
        )
        .order_by(col(SessionRow.id))
    )
    return db.exec(statement.with_for_update() if lock else statement).all()


def read_session_metadata(db: DbSession, row: SessionRow) -> dict[str, Any]:
    """Return the metadata that a session was created with."""
    stored = db.get(SessionMetadataRow, row.id)
    return {} if stored is None else stored.metadata_


#: Members of a session object that are no columns of its row.
_NOT_IN_ROW = {"actor", "metadata", "path_id", "seal_error"}


def session_to_wire(row: SessionRow, metadata: dict[str, Any], *, path_id: str | None = None) -> Session:
    """Return the session object of spec §2.1.

    Args:
        row: the session.
        metadata: its metadata.
        path_id: the path it is counted on.
    """
    actor = None
    if row.actor_id is not None and row.actor_kind is not None:
        actor = Actor.model_validate({"id": row.actor_id, "kind": row.actor_kind})
    seal_error = None
    if row.seal_error_code is not None:
        seal_error = {
            "code": row.seal_error_code,
            "message": row.seal_error_message,
            "at": row.seal_error_at,
        }
    return Session.model_validate(
        {
            **row.model_dump(
                include=set(Session.model_fields) - {"actor", "metadata", "path_id", "seal_error"}
            ),
            "actor": actor,
            "seal_error": seal_error,
            "metadata": metadata,
            "path_id": path_id,
        }
    )


def emit_session_event(
    db: DbSession,
    row: SessionRow,
    type: str,
    *,
    metadata: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    """Queue a session event: `data` is the session as it is now, and what else the type carries."""
    known = read_session_metadata(db, row) if metadata is None else metadata
    emit_session(db, row, type, session_to_wire(row, known, path_id=read_path_id(db, row)), **more)


def emit_session(db: DbSession, row: SessionRow, type: str, session: Session, **more: Any) -> None:
    """Queue a session event about a session object that was made already."""
    add_outbox_event(
        db,
        tenant=row.tenant,
        type=type,
        subject_id=row.id,
        data={"session": session.model_dump(mode="json"), **more},
    )


def change_session_status(db: DbSession, row: SessionRow, status: SessionStatus, at: datetime) -> None:
    """Set the status; the change takes a position, so that streams send it in order, and wakes them."""
    row.status = status
    row.last_position += 1
    db.add(row)
    note_change(db, SessionRow, row.id)
    db.add(SessionStatusRow(session_id=row.id, position=row.last_position, status=status, at=at))


def check_new_session(body: SessionCreate) -> None:
    """Check what the types of a new session do not say.

    Raises:
        MetadataTooLarge: If the metadata is over 16,384 bytes of compact JSON.
        InvalidTime: If `started_at` is in the future.
        ValidationFailed: If `started_at` comes without `start`.
    """
    if len(orjson.dumps(body.metadata)) > limits.METADATA_BYTES:
        raise MetadataTooLarge(limits.METADATA_BYTES)
    if body.started_at is None:
        return
    if not body.start:
        raise ValidationFailed.of(
            "/started_at", "needs_start", message="started_at is for imports: send start true too."
        )
    if body.started_at > clock.now():
        raise InvalidTime("/started_at", "started_at must not be in the future.", where="body")


def _start_session(db: DbSession, row: SessionRow, at: datetime, *, metadata: dict[str, Any]) -> None:
    row.started_at = at
    if _is_session_charged(row):
        row.charged_from_ms = 0 if row.is_import else clock.to_ms(at)
    change_session_status(db, row, "recording", clock.now())
    emit_session_event(db, row, "session.started", metadata=metadata)


def _is_session_charged(row: SessionRow) -> bool:
    return row.mode != "test" and row.origin != "replay"
