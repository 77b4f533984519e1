"""Rows of replays and recoveries: find one, list them, bound those that have not ended, audit. Spec §4.6."""

from typing import Any, TypeVar

from sqlalchemy import exists, func, or_
from sqlalchemy.orm import defer
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import limits
from recorder.audit.log import Action, Origin, ResourceType, record_audit_entry
from recorder.errors import LimitReached, NotFound
from recorder.ids import is_id
from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow
from recorder.models.session import SessionRow
from recorder.storage.conditions import has_text, in_tenant
from recorder.storage.list_pages import FetchedPage, fetch_newest_rows
from recorder.tenant import Tenant

Row = TypeVar("Row", ReplayRow, RecoveryRow)

#: Prefix of the ids, name of one in errors, and of many.
_NAMES = {ReplayRow: ("rpl", "replay", "replays"), RecoveryRow: ("rcv", "recovery", "recoveries")}
#: Column with the id of a second session, which a row may name.
_OTHER_SESSION = {ReplayRow: ReplayRow.against_session_id, RecoveryRow: RecoveryRow.point_session_id}


def find_replay_or_recovery(
    db: DbSession, table: type[Row], tenant: Tenant, row_id: str, *, lock: bool = False
) -> Row:
    """Return a replay or a recovery of the caller's workspace and mode.

    Raises:
        NotFound: if it is missing, of another workspace or mode, or of a deleted session.
    """
    prefix, name, _ = _NAMES[table]
    if not is_id(row_id, prefix):
        raise NotFound(name)
    statement = select(table).where(
        table.id == row_id, *in_tenant(table, tenant), *make_undeleted_session_conditions(table)
    )
    row = db.exec(statement.with_for_update(of=table) if lock else statement).one_or_none()
    if row is None:
        raise NotFound(name)
    return row


def list_replays_or_recoveries(
    db: DbSession,
    table: type[Row],
    tenant: Tenant,
    *,
    filters: dict[str, str | None],
    workflows: list[str],
    before_id: str | None,
    limit: int,
) -> FetchedPage[Row, str]:
    """Return a page of replays or recoveries, newest first; its position is the id of the last one.

    Args:
        db: database session.
        table: kind of the rows.
        tenant: workspace and mode of the rows.
        filters: columns with the value that they must have; None takes all.
        workflows: rows of one of them; empty takes all.
        before_id: the last id of the page before.
        limit: most rows of a page.
    """
    statement = select(table).where(*in_tenant(table, tenant), *make_undeleted_session_conditions(table))
    for name, value in filters.items():
        if value is not None:
            statement = statement.where(has_text(getattr(table, name), value))
    if workflows:
        statement = statement.where(col(table.workflow).in_(workflows))
    # A page of inputs has up to 500 MB.
    statement = statement.options(defer(table.input_values))  # type: ignore[arg-type]
    return fetch_newest_rows(db, statement, col(table.id), before_id=before_id, limit=limit)


def make_undeleted_session_conditions(table: type[Row]) -> list[Any]:
    """Return the conditions that the sessions of a replay or a recovery are not deleted."""
    other_session = col(_OTHER_SESSION[table])
    alive = col(SessionRow.deleted_at).is_(None)
    first = exists().where(col(SessionRow.id) == table.session_id, alive)
    other = exists().where(col(SessionRow.id) == other_session, alive)
    return [first, or_(other_session.is_(None), other)]


def check_open_row_limit(db: DbSession, table: type[Row], tenant: Tenant) -> None:
    """Check that a workspace may have one more replay, or recovery, that has not ended.

    Those of deleted sessions, which no client can cancel, do not count.

    Raises:
        LimitReached: if it has too many.
    """
    is_open = col(table.finished_at).is_(None)
    counted = select(func.count()).select_from(table).where(*in_tenant(table, tenant), is_open)
    if db.exec(counted).one() < limits.OPEN_REPLAYS:
        return
    # To look at the session of each row takes longer.
    if db.exec(counted.where(*make_undeleted_session_conditions(table))).one() >= limits.OPEN_REPLAYS:
        remedy = "wait until some have ended, or cancel some"
        raise LimitReached(f"{_NAMES[table][2]} that have not ended", limits.OPEN_REPLAYS, remedy)


def record_live_change(
    db: DbSession,
    origin: Origin,
    action: Action,
    row: ReplayRow | RecoveryRow,
    *,
    details: dict[str, Any] | None = None,
) -> None:
    """Record the audit entry of a change of a live replay or recovery; changes of dry ones have none.

    Args:
        db: a write transaction.
        origin: origin of the request.
        action: name of the change.
        row: the replay or recovery.
        details: members of the entry.
    """
    if row.sandbox == "live":
        kind: ResourceType = "replay" if isinstance(row, ReplayRow) else "recovery"
        record_audit_entry(db, origin, action, resource_type=kind, resource_id=row.id, details=details)
