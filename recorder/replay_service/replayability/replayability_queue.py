"""Queue of sealed sessions without replayability: the row is the queue. Spec §4.6, decision 0044."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, text, update
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder import clock
from recorder.models.session import WAITS_FOR_REPLAYABILITY, SessionRow
from recorder.storage.leases import is_lease_held
from recorder.tenant import Tenant

#: Age of the oldest session for which a run is started: sessions that are sealed meanwhile share its start.
_START_AFTER = timedelta(seconds=5)

_TENANT_COLUMNS: tuple[Any, ...] = (
    *(col(SessionRow.workspace_id), col(SessionRow.mode)),
    col(SessionRow.sealed_at),
)
# One workspace and mode after another, each with its oldest session. As expressions, not as columns, and one
# comparison for each: SQLite then looks both up in the index.
_FIRST_OF_EACH_TENANT = text("""
    WITH RECURSIVE first(id) AS (
        SELECT (
            SELECT id FROM sessions WHERE sealed_at IS NOT NULL AND replayability_at IS NULL
              AND deleted_at IS NULL AND waiting_since IS NULL
            ORDER BY workspace_id, mode, sealed_at LIMIT 1
        )
        UNION ALL
        SELECT COALESCE((
            SELECT id FROM sessions WHERE sealed_at IS NOT NULL AND replayability_at IS NULL
              AND deleted_at IS NULL AND waiting_since IS NULL
              AND workspace_id = before.workspace_id || '' AND mode > before.mode || ''
            ORDER BY workspace_id, mode, sealed_at LIMIT 1
        ), (
            SELECT id FROM sessions WHERE sealed_at IS NOT NULL AND replayability_at IS NULL
              AND deleted_at IS NULL AND waiting_since IS NULL
              AND workspace_id > before.workspace_id || ''
            ORDER BY workspace_id, mode, sealed_at LIMIT 1
        ))
        FROM first JOIN sessions AS before ON before.id = first.id
    )
    SELECT sessions.workspace_id, sessions.mode, sessions.sealed_at
    FROM first JOIN sessions ON sessions.id = first.id
    JOIN workspaces ON workspaces.id = sessions.workspace_id AND workspaces.status = 'active'
""").columns(*_TENANT_COLUMNS)


def has_queued_replayability(db: DbSession, lease: str) -> bool:
    """Return whether sessions of active workspaces have waited long enough, and no run holds this lease."""
    if is_lease_held(db, lease, now_ms=clock.now_ms()):
        return False
    before = clock.now() - _START_AFTER
    return any(sealed_at <= before for _, sealed_at in list_replayability_queue_tenants(db))


def list_replayability_queue_tenants(db: DbSession) -> list[tuple[Tenant, datetime]]:
    """Return each active workspace and mode with waiting sessions, and when its oldest was sealed.

    It costs an index look-up for each, however many sessions wait.
    """
    rows = db.connection().execute(_FIRST_OF_EACH_TENANT)
    return [(Tenant(workspace_id, mode), sealed_at) for workspace_id, mode, sealed_at in rows]


def store_queued_replayability(db: DbSession, values: dict[str, float | None]) -> None:
    """Store values of sessions that still wait for one."""
    waits = (col(SessionRow.id) == bindparam("session_id"), WAITS_FOR_REPLAYABILITY)
    changed = {"replayability": bindparam("value"), "replayability_at": clock.now()}
    rows = [{"session_id": session_id, "value": value} for session_id, value in values.items()]
    db.connection().execute(update(SessionRow).where(*waits).values(**changed), rows)
