"""Queue of sealed sessions without replayability: the row is the queue. Spec §4.6, decision 0044."""

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import bindparam, update
from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder import clock
from recorder.models.session import WAITS_FOR_REPLAYABILITY, SessionRow
from recorder.storage.leases import is_lease_held
from recorder.storage.waiting_rows import WaitingRows
from recorder.tenant import Tenant

#: Age of the oldest session for which a run is started: sessions that are sealed until then share its start.
_START_AFTER = timedelta(seconds=5)

#: The oldest session of each workspace and mode costs an index look-up, however many wait.
_WAITING = WaitingRows(SessionRow, WAITS_FOR_REPLAYABILITY.text, "sealed_at")
_WAITING_FOR_LONG = replace(_WAITING, is_timed=True, delay=_START_AFTER)


def has_queued_replayability(db: DbSession, lease: str) -> bool:
    """Return whether sessions of active workspaces have waited long enough, and no run holds this lease."""
    if is_lease_held(db, lease, now_ms=clock.now_ms()):
        return False
    return _WAITING_FOR_LONG.has_due(db)


def list_replayability_queue_tenants(db: DbSession) -> list[Tenant]:
    """Return the active workspaces and modes with waiting sessions."""
    return _WAITING.list_tenants(db)


def store_queued_replayability(db: DbSession, values: dict[str, float | None]) -> None:
    """Store values of sessions that still wait for one."""
    waits = (col(SessionRow.id) == bindparam("session_id"), WAITS_FOR_REPLAYABILITY)
    changed = {"replayability": bindparam("value"), "replayability_at": clock.now()}
    rows = [{"session_id": session_id, "value": value} for session_id, value in values.items()]
    db.connection().execute(update(SessionRow).where(*waits).values(**changed), rows)
