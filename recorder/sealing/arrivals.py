"""Arrival of sealed rows in the lake: rows and data files of its tables against the sessions in SQL.

The expected rows come from SQL alone: a table of the lake may be lost together with its log.
"""

import logging
import time
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, func, or_
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import Unavailable
from recorder.models.governance import PurgeRow
from recorder.models.operations import SealCounterRow
from recorder.models.session import SessionRow
from recorder.number_formats import format_count
from recorder.runtime import Runtime
from recorder.sealing.lanes import Lane, list_open_lane_batches
from recorder.storage.conditions import in_tenant
from recorder.storage.lake_file_check import TableFiles, check_data_files
from recorder.tenant import Tenant

log = logging.getLogger("recorder.sealing")

#: Tables whose rows each session counts.
ArrivalKind = Literal["events", "frames"]

# A batch is committed to one table after the other; a count in between sees a difference that passes.
_COUNT_ATTEMPTS = 5
_COUNT_PAUSE_S = 0.5
_NAMED_FILES = 3
#: Steps of a purge in which the lake may still hold rows of the session.
_STEPS_WITH_ROWS = ("content", "lake")


@dataclass(frozen=True)
class TableArrival:
    """Rows and data files of one lake table, and the rows that it must hold."""

    tenant: Tenant
    kind: ArrivalKind
    #: Rows of the sealed sessions.
    expected_rows: int
    #: Rows of sessions that are being sealed or removed: the table may hold them or not.
    changing_rows: int
    files: TableFiles
    #: Name of the error for which log or files cannot be read; None where they can.
    reading_error: str | None = None

    @property
    def has_expected_rows(self) -> bool:
        """Return whether the table's log counts the expected rows."""
        return self.reading_error is None and 0 <= self.files.rows - self.expected_rows <= self.changing_rows

    @property
    def is_complete(self) -> bool:
        """Return whether the table holds the expected rows, in files that all exist in full."""
        return self.has_expected_rows and not self.files.damaged

    def describe(self) -> str:
        """Return the table with its rows, and with the first of its damaged files if there are any."""
        table = f"{self.tenant.workspace_id}/{self.tenant.mode}/{self.kind}"
        if self.reading_error is not None:
            return f"{table} cannot be read ({self.reading_error}): its log is damaged, or its store is away"
        text = f"{table} holds {self.files.rows:,} rows of {self.expected_rows:,}"
        if not self.files.damaged:
            return text
        count = format_count(len(self.files.damaged), "file")
        named = ", ".join(self.files.damaged[:_NAMED_FILES])
        return f"{text}; {count} missing or of another size than in the log: {named}"


def check_table_arrivals(runtime: Runtime, *, pause_s: float = _COUNT_PAUSE_S) -> list[TableArrival]:
    """Return the tables of every workspace and mode, with their rows and files, or that one cannot be read.

    Differing rows are counted again, since a batch may be under way.

    Args:
        runtime: the deployment.
        pause_s: seconds between two counts of differing rows.

    Raises:
        Unavailable: if the database does not answer.
    """
    with runtime.database.transaction(write=False) as db:
        tenants = _list_tenants(db)
    return [
        arrival for tenant in tenants for arrival in _compare_tenant_until_complete(runtime, tenant, pause_s)
    ]


def _list_tenants(db: DbSession) -> list[Tenant]:
    """Return every workspace and mode that has sessions, or had a batch."""
    with_sessions = select(SessionRow.workspace_id, SessionRow.mode).distinct()
    with_batches = select(SealCounterRow.workspace_id, SealCounterRow.mode).distinct()
    return sorted({Tenant(*row) for row in (*db.exec(with_sessions), *db.exec(with_batches))})


def _compare_tenant_until_complete(runtime: Runtime, tenant: Tenant, pause_s: float) -> list[TableArrival]:
    """Compare a tenant's rows with the lake, again after a pause while rows are missing."""
    arrivals = _compare_tenant_with_lake(runtime, tenant)
    for _ in range(_COUNT_ATTEMPTS - 1):
        if all(arrival.has_expected_rows or arrival.reading_error is not None for arrival in arrivals):
            break
        time.sleep(pause_s)
        arrivals = _compare_tenant_with_lake(runtime, tenant)
    return arrivals


def _compare_tenant_with_lake(runtime: Runtime, tenant: Tenant) -> list[TableArrival]:
    """Compare the rows that SQL expects of a tenant's sealed sessions with those of the lake."""
    # SQL first: a session is marked as sealed only once the lake has it.
    with runtime.database.transaction(write=False) as db:
        expected = _sum_session_rows(db, tenant, _is_settled())
        changing = _sum_session_rows(db, tenant, _is_changing(db, tenant)) + _sum_purged_rows(db, tenant)
    kinds: tuple[ArrivalKind, ...] = ("events", "frames")
    return [
        _check_table(runtime, tenant, kind, expected_rows=expected.of(kind), changing_rows=changing.of(kind))
        for kind in kinds
    ]


def _check_table(
    runtime: Runtime, tenant: Tenant, kind: ArrivalKind, *, expected_rows: int, changing_rows: int
) -> TableArrival:
    """Return one table; an error in reading it is part of the result, so that it hides no other table."""
    files, reading_error = TableFiles(), None
    try:
        files = check_data_files(runtime.lake.stored_table(kind, tenant))
    except Unavailable as error:
        log.warning("the %s of %s cannot be checked", kind, tenant, exc_info=True)
        reading_error = type(error.__cause__ or error).__name__
    return TableArrival(tenant, kind, expected_rows, changing_rows, files, reading_error)


@dataclass(frozen=True)
class _Rows:
    """Numbers of events and frames."""

    events: int
    frames: int

    def __add__(self, other: "_Rows") -> "_Rows":
        return _Rows(self.events + other.events, self.frames + other.frames)

    def of(self, kind: ArrivalKind) -> int:
        """Return the number of one kind."""
        return self.events if kind == "events" else self.frames


def _is_settled() -> ColumnElement[bool]:
    """Return the condition of sealed sessions that are not to be sealed again."""
    row = SessionRow
    return and_(
        col(row.status) == "sealed", col(row.waiting_since).is_(None), col(row.seal_error_code).is_(None)
    )


def _is_changing(db: DbSession, tenant: Tenant) -> ColumnElement[bool]:
    """Return the condition of sessions that are being sealed, for the first time or again.

    Among them are those that were deleted while they were sealed, whose rows are then deleted again.
    """
    row = SessionRow
    in_batches = {
        session_id
        for batch in list_open_lane_batches(db)
        if Lane.of_batch(batch).tenant == tenant
        for session_id in batch.session_ids
    }
    is_stopped = and_(
        col(row.status) == "stopped", or_(col(row.lake_date).is_not(None), col(row.id).in_(in_batches))
    )
    is_again = or_(col(row.waiting_since).is_not(None), col(row.seal_error_code).is_not(None))
    return or_(is_stopped, and_(col(row.status) == "sealed", is_again))


def _sum_session_rows(db: DbSession, tenant: Tenant, condition: ColumnElement[bool]) -> _Rows:
    """Return the rows of sessions that meet a condition and are not being purged."""
    row = SessionRow
    purged = select(PurgeRow.session_id).where(*_are_purged_with_rows(tenant))
    sums = select(func.sum(row.event_count), func.sum(row.frame_count))
    totals = db.exec(sums.where(*in_tenant(row, tenant), condition, col(row.id).not_in(purged))).one()
    return _Rows(*(int(total or 0) for total in totals))


def _sum_purged_rows(db: DbSession, tenant: Tenant) -> _Rows:
    """Return the rows of sessions that are being purged, some of which the lake may have lost already."""
    sums = select(func.sum(PurgeRow.events), func.sum(PurgeRow.frames))
    totals = db.exec(sums.where(*_are_purged_with_rows(tenant))).one()
    return _Rows(*(int(total or 0) for total in totals))


def _are_purged_with_rows(tenant: Tenant) -> tuple[Any, ...]:
    """Return conditions of purges whose sessions may still have rows in the lake."""
    return (*in_tenant(PurgeRow, tenant), col(PurgeRow.step).in_(_STEPS_WITH_ROWS))
