"""The list of sessions: filters, order, pages. Spec §4.1 (GET /v1/sessions), contract §1 (lists)."""

from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.ids import first_id_at
from recorder.models.session import Session, SessionMetadataRow, SessionRow
from recorder.models.tag import TagRow
from recorder.recording.sessions import to_wire


@dataclass(frozen=True, kw_only=True)
class SessionFilter:
    """What `GET /v1/sessions` may filter by; None and empty match everything."""

    workflow: tuple[str, ...] = ()
    status: str | None = None
    outcome: str | None = None
    actor_kind: str | None = None
    tag: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def list_sessions(
    db: DbSession,
    workspace_id: str,
    mode: str,
    filters: SessionFilter,
    *,
    before_id: str | None,
    limit: int,
) -> tuple[list[Session], bool]:
    """A page of sessions, newest first, and whether more follow.

    Ids rise with `created_at`, so times, cursor and order are one range over the ids.

    Args:
        before_id: the last id of the page before.
    """
    statement = (
        select(SessionRow, SessionMetadataRow)
        .join(SessionMetadataRow, col(SessionMetadataRow.session_id) == col(SessionRow.id))
        .where(
            SessionRow.workspace_id == workspace_id,
            SessionRow.mode == mode,
            col(SessionRow.deleted_at).is_(None),
        )
    )
    if filters.workflow:
        statement = statement.where(col(SessionRow.workflow).in_(filters.workflow))
    for column, value in (
        (SessionRow.status, filters.status),
        (SessionRow.outcome, filters.outcome),
        (SessionRow.actor_kind, filters.actor_kind),
    ):
        if value is not None:
            statement = statement.where(col(column) == value)
    if filters.since is not None:
        statement = statement.where(col(SessionRow.id) >= first_id_at("ses", filters.since))
    if filters.until is not None:
        statement = statement.where(col(SessionRow.id) < first_id_at("ses", filters.until))
    if before_id is not None:
        statement = statement.where(col(SessionRow.id) < before_id)
    if filters.tag is not None:
        tagged = select(TagRow.session_id).where(
            TagRow.workspace_id == workspace_id, TagRow.mode == mode, TagRow.name == filters.tag
        )
        statement = statement.where(col(SessionRow.id).in_(tagged))
    rows = db.exec(statement.order_by(col(SessionRow.id).desc()).limit(limit + 1)).all()
    page = [to_wire(row, metadata.metadata_) for row, metadata in rows[:limit]]
    return page, len(rows) > limit
