"""Status of Dagster in SQL: stored by a sensor of ours, read by whoever warns. Contract §9."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlmodel import Session as DbSession
from sqlmodel import delete, select

from recorder.models.operations import Kind, OrchestrationStatusRow
from recorder.storage.database import Database

#: Without a change the rows are written again after so long: their age is Dagster's sign of life.
REPEAT_AFTER = timedelta(seconds=30)


@dataclass(frozen=True)
class Status:
    """State of one sensor, schedule or daemon, as Dagster's side reported it."""

    kind: Kind
    name: str
    is_on: bool
    seen_at: datetime


def store_statuses(database: Database, statuses: Sequence[Status]) -> bool:
    """Replace the stored statuses if they differ or are old; returns whether they were replaced."""
    with database.transaction(write=False) as db:
        if not _is_due(read_statuses(db), statuses):
            return False
    with database.transaction(write=True) as db:
        db.exec(delete(OrchestrationStatusRow))
        db.add_all(
            OrchestrationStatusRow(
                kind=one.kind, name=one.name, state="on" if one.is_on else "off", seen_at=one.seen_at
            )
            for one in statuses
        )
    return True


def read_statuses(db: DbSession) -> list[Status]:
    """Return the stored statuses; none where Dagster has never run."""
    rows = db.exec(select(OrchestrationStatusRow).order_by("kind", "name"))
    return [Status(row.kind, row.name, row.state == "on", row.seen_at) for row in rows]  # type: ignore[arg-type]


def _is_due(stored: Sequence[Status], seen: Sequence[Status]) -> bool:
    before = {(one.kind, one.name): one for one in stored}
    after = {(one.kind, one.name): one for one in seen}
    if before.keys() != after.keys() or any(before[key].is_on != after[key].is_on for key in after):
        return True
    return any(after[key].seen_at - before[key].seen_at >= REPEAT_AFTER for key in after)
