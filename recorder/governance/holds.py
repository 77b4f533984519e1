"""Legal holds: sessions that no retention, purge or hard delete may remove. Contract §2, §7."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder import clock, limits
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import InvalidState, NotFound, ValidationFailed
from recorder.models.governance import HoldKind, HoldRow, PurgeRow
from recorder.models.session import SessionRow, TagRow
from recorder.storage.upsert import insert_if_missing


@dataclass(frozen=True)
class Hold:
    """A legal hold as it is listed."""

    workspace_id: str
    kind: str
    value: str
    created_at: datetime


def add_hold(db: DbSession, origin: Origin, *, kind: HoldKind, value: str) -> bool:
    """Hold a session, or all sessions with a tag, of the origin's workspace.

    Args:
        db: a write transaction.
        origin: actor of the change, and its workspace.
        kind: kind of the hold.
        value: id of the session, or name of the tag.

    Returns:
        False if the hold exists already.

    Raises:
        NotFound: if the workspace has no such session, or its purge began.
        ValidationFailed: if no tag can have this name.
    """
    if kind == "session":
        _require_session_to_hold(db, origin.workspace_id, value)
    elif not value or len(value) > limits.TAG_NAME_CHARACTERS or not value.isprintable():
        message = f"A tag has 1 to {limits.TAG_NAME_CHARACTERS} printable characters."
        raise ValidationFailed.of("tag", "invalid_string", message=message)
    values = {"workspace_id": origin.workspace_id, "kind": kind, "value": value, "created_at": clock.now()}
    if not insert_if_missing(db, HoldRow, values):
        return False
    record_audit_entry(db, origin, "hold.add", resource_type=kind, resource_id=value)
    return True


def remove_hold(db: DbSession, origin: Origin, *, kind: HoldKind, value: str) -> None:
    """Remove a hold from a workspace, so that what it named can be purged again.

    Raises:
        NotFound: if there is no such hold.
    """
    row = db.get(HoldRow, (origin.workspace_id, kind, value))
    if row is None:
        raise NotFound("hold", "The workspace has no such hold; `recorder hold list` shows its holds.")
    db.delete(row)
    record_audit_entry(db, origin, "hold.remove", resource_type=kind, resource_id=value)


def list_holds(db: DbSession, workspace_id: str | None = None) -> list[Hold]:
    """Return the holds of one workspace or of all, the oldest first."""
    statement = select(HoldRow).order_by(col(HoldRow.created_at), col(HoldRow.kind), col(HoldRow.value))
    if workspace_id is not None:
        statement = statement.where(HoldRow.workspace_id == workspace_id)
    return [Hold(row.workspace_id, row.kind, row.value, row.created_at) for row in db.exec(statement)]


def list_held_sessions(db: DbSession, workspace_id: str, session_ids: Collection[str]) -> set[str]:
    """Return the sessions among these of a workspace that are held, by themselves or by a tag."""
    by_id = select(HoldRow.value).where(
        HoldRow.workspace_id == workspace_id,
        HoldRow.kind == "session",
        col(HoldRow.value).in_(session_ids),
    )
    held_tags = select(HoldRow.value).where(HoldRow.workspace_id == workspace_id, HoldRow.kind == "tag")
    by_tag = select(TagRow.session_id).where(
        col(TagRow.session_id).in_(session_ids), col(TagRow.name).in_(held_tags)
    )
    return {*db.exec(by_id), *db.exec(by_tag.distinct())}


def require_unheld_session(db: DbSession, row: SessionRow) -> None:
    """Check that a session is not held.

    Raises:
        InvalidState: if it is.
    """
    if list_held_sessions(db, row.workspace_id, [row.id]):
        raise InvalidState(
            row.status,
            needed="session must be free of legal holds to be purged",
            obstacle="held",
            remedy="Ask the operator to end the hold: `recorder hold list`, then `recorder hold remove`.",
        )


def forget_holds(db: DbSession, workspace_id: str, session_ids: Collection[str]) -> None:
    """Delete the holds that name purged sessions."""
    named = col(HoldRow.value).in_(session_ids)
    db.exec(delete(HoldRow).where(col(HoldRow.workspace_id) == workspace_id, named))


def _require_session_to_hold(db: DbSession, workspace_id: str, session_id: str) -> None:
    # Locked, so that a purge which is requested at the moment is seen here, or sees the hold.
    row = db.get(SessionRow, session_id, with_for_update=True)
    if row is None or row.workspace_id != workspace_id or db.get(PurgeRow, session_id) is not None:
        detail = "The workspace has no session of this id, or its purge began; check the id and --workspace."
        raise NotFound("session", detail)
