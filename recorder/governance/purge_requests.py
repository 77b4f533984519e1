"""Requests for purges: the rows from which a run goes on. Contract §2, §7."""

from collections import Counter
from datetime import datetime
from typing import cast

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.governance.holds import find_held
from recorder.models.governance import ErasureRow, PurgeCause, PurgeRow
from recorder.models.operations import OutboxRow
from recorder.models.session import SessionRow
from recorder.models.webhook import DeliveryRow
from recorder.recording.sessions import hide_session


def request_purge(
    db: DbSession, row: SessionRow, cause: PurgeCause, *, at: datetime, erasure_id: str | None = None
) -> PurgeRow:
    """Write the intent to purge a session, in the transaction that hides it or finds it hidden.

    Args:
        db: a write transaction that holds the session's row.
        row: the session.
        cause: why it is purged.
        at: time of the request.
        erasure_id: the erasure that asks for it.
    """
    purge = PurgeRow(
        session_id=row.id,
        workspace_id=row.workspace_id,
        mode=row.mode,
        workflow=row.workflow,
        cause=cause,
        due_at=at,
        requested_at=at,
        dates=[] if row.lake_date is None else [row.lake_date],
        event_bytes=row.event_bytes,
        frame_bytes=row.frame_bytes,
        events=row.event_count,
        frames=row.frame_count,
        erasure_id=erasure_id,
    )
    db.add(purge)
    return purge


def request_recorded(db: DbSession, purge: PurgeRow, session_ids: list[str]) -> None:
    """Request the purges of sessions that live replays of a purged session recorded, but for held ones.

    An erasure counts them with the session, which it waits for.
    """
    held = find_held(db, purge.workspace_id, session_ids)
    statement = select(SessionRow).where(col(SessionRow.id).in_(set(session_ids) - held))
    rows = db.exec(statement.order_by(col(SessionRow.id)).with_for_update()).all()
    counts: Counter[str] = Counter()
    for row in rows:
        if db.get(PurgeRow, row.id) is not None:
            continue
        now = clock.now()
        if row.deleted_at is None:
            hide_session(db, row, at=now)
        request_purge(db, row, cast(PurgeCause, purge.cause), at=now, erasure_id=purge.erasure_id)
        counts.update(
            sessions=1,
            events=row.event_count,
            frames=row.frame_count,
            bytes=row.event_bytes + row.frame_bytes,
            deliveries=count_deliveries(db, row.id),
        )
    if purge.erasure_id is not None and counts:
        db.flush()
        # Locked last, as everywhere.
        erasure = db.get_one(ErasureRow, purge.erasure_id, with_for_update=True, populate_existing=True)
        erasure.counts = dict(Counter(erasure.counts) + counts)
        db.add(erasure)


def count_deliveries(db: DbSession, session_id: str) -> int:
    """Return how many events of a session were delivered: those copies are out of reach."""
    events = select(OutboxRow.id).where(OutboxRow.subject_id == session_id)
    sent = (col(DeliveryRow.event_id).in_(events), DeliveryRow.status == "succeeded")
    return db.exec(select(func.count()).select_from(DeliveryRow).where(*sent)).one()
