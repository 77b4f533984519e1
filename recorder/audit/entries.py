"""Reading the audit log: pages, and all of it for a SIEM. Contract §7 (audit)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from sqlmodel import Session as DbSession
from sqlmodel import col, or_, select

from recorder.audit.log import entry_of
from recorder.models.audit import AuditEntry, AuditRow
from recorder.storage.database import Database

_STREAM_ROWS = 500


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """What `GET /v1/audit` may filter by; None matches everything."""

    workspace_id: str
    #: `test` leaves only what test keys did; None shows the whole chain.
    mode: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    action: str | None = None
    #: An actor's id, or its type.
    actor: str | None = None
    #: A resource's id, or its type.
    resource: str | None = None
    after_number: int = 0


def list_entries(db: DbSession, filters: AuditFilter, *, limit: int) -> tuple[list[AuditEntry], int | None]:
    """A page of entries in the order of the chain, and the number of its last one if more follow."""
    rows = _rows(db, filters, limit + 1)
    page = rows[:limit]
    return [to_wire(row) for row in page], page[-1].number if len(rows) > limit else None


def stream_entries(database: Database, filters: AuditFilter) -> Iterator[bytes]:
    """All entries as NDJSON, a few hundred at a time, each time in a transaction of its own.

    Entries are only ever added, at the end: what is read in parts is what one transaction would have read.
    """
    while True:
        with database.transaction(write=False) as db:
            rows = _rows(db, filters, _STREAM_ROWS)
        if rows:
            yield b"".join(to_wire(row).model_dump_json().encode() + b"\n" for row in rows)
            filters = replace(filters, after_number=rows[-1].number)
        if len(rows) < _STREAM_ROWS:
            return


def to_wire(row: AuditRow) -> AuditEntry:
    """The wire object of a row."""
    return AuditEntry.model_validate({**entry_of(row), "hash": row.hash})


def _rows(db: DbSession, filters: AuditFilter, limit: int) -> list[AuditRow]:
    statement = select(AuditRow).where(
        AuditRow.workspace_id == filters.workspace_id, col(AuditRow.number) > filters.after_number
    )
    if filters.mode is not None:
        statement = statement.where(AuditRow.mode == filters.mode)
    if filters.since is not None:
        statement = statement.where(col(AuditRow.at) >= filters.since)
    if filters.until is not None:
        statement = statement.where(col(AuditRow.at) < filters.until)
    if filters.action is not None:
        statement = statement.where(AuditRow.action == filters.action)
    if filters.actor is not None:
        named = or_(AuditRow.actor_id == filters.actor, AuditRow.actor_type == filters.actor)
        statement = statement.where(named)
    if filters.resource is not None:
        named = or_(AuditRow.resource_id == filters.resource, AuditRow.resource_type == filters.resource)
        statement = statement.where(named)
    return list(db.exec(statement.order_by(col(AuditRow.number)).limit(limit)))
