"""What waits to be done, as the database tells it: the same whichever process asks. Contract §9 (metrics)."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import get_args

from sqlalchemy import ColumnClause, func, literal_column
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.ids import first_id_at
from recorder.models.export import ExportRow
from recorder.models.operations import OutboxRow
from recorder.models.webhook import DeliveryRow, DeliveryStatus

# As text in the statement: a partial index is not found by a bound value.
_PENDING: ColumnClause[str] = literal_column("'pending'")
_RECENT = timedelta(hours=1)
_OUTCOMES = get_args(DeliveryStatus)


@dataclass(frozen=True)
class Backlog:
    """Work that nobody has finished yet."""

    #: Unfinished exports by status.
    exports: dict[str, int]
    #: Events that were not handed to webhooks yet, and when the oldest of them happened.
    outbox_pending: int
    oldest_event: datetime | None
    #: Attempts to deliver that wait or are under way, and those of the last hour by what became of them.
    deliveries_pending: int
    deliveries: dict[str, int]


def count_backlog(db: DbSession) -> Backlog:
    """Count what waits now; every count reads an index or few rows."""
    exports = (
        select(ExportRow.status, func.count())
        .where(col(ExportRow.status).in_(("queued", "running")))
        .group_by(ExportRow.status)
    )
    outbox = select(func.count(), func.min(OutboxRow.created_at)).where(
        col(OutboxRow.dispatched_at).is_(None)
    )
    pending = select(func.count()).where(col(DeliveryRow.status) == _PENDING)
    recent = (
        select(DeliveryRow.status, func.count())
        .where(DeliveryRow.id >= first_id_at("dlv", clock.now() - _RECENT))
        .group_by(DeliveryRow.status)
    )
    outbox_pending, oldest_event = db.exec(outbox).one()
    return Backlog(
        exports={"queued": 0, "running": 0, **dict(db.exec(exports).all())},
        outbox_pending=outbox_pending,
        oldest_event=oldest_event,
        deliveries_pending=db.exec(pending).one(),
        deliveries={**dict.fromkeys(_OUTCOMES, 0), **dict(db.exec(recent).all())},
    )
