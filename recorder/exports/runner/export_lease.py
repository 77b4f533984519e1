"""Lease of an export: claimed for a run, checked again in every transaction. Design §3."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, exists, func, literal, or_, text
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import Conflict, RecorderError
from recorder.models.export import OPEN_STATUSES, ExportRow
from recorder.models.operations import LeaseRow
from recorder.storage.database import Database
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost, hold_lease, make_unexpired_condition

#: Another run follows a killed one after this time.
LEASE_MS = 60_000
_BEATS_PER_LEASE = 4
_PREFIX = "export:"
# Written as in the partial index.
_FILES_LEFT = text("files_left")


class ExportBusy(Conflict):
    """Another run works on the export."""

    code = "export_busy"

    def __init__(self) -> None:
        super().__init__("Another run works on this export; wait for it to end.")


class ExportCancelled(RecorderError):
    """The export was cancelled."""

    code = "cancelled"
    title = "Cancelled"

    def __init__(self) -> None:
        super().__init__("The export was cancelled.")


def list_due_exports(
    db: DbSession, *, limit: int, per_workspace: int | None = None, first_tries: bool = True
) -> list[ExportRow]:
    """Return the exports that need a run, workspaces in turn: the first export of each, then the second.

    These are queued ones, running ones whose run was lost, and failed ones whose files are not removed. In a
    workspace, those with the fewest tries come first, then the oldest: an export whose store is gone is tried
    repeatedly, after the others. Exports that wait for the replayability of sessions are left out.

    Args:
        db: database session.
        limit: most exports in all.
        per_workspace: most exports of a workspace, so that one client does not block the others.
        first_tries: whether to return exports that the process for small exports has not tried.
    """
    free = make_lease_free_condition()
    order = (col(ExportRow.attempt), col(ExportRow.id))
    rank = func.row_number().over(partition_by=col(ExportRow.workspace_id), order_by=order)
    turns: dict[str, int] = {}
    unfinished: list[ColumnElement[bool]] = [
        col(ExportRow.status).in_(OPEN_STATUSES),
        col(ExportRow.awaited_sessions).is_(None),
    ]
    if not first_tries:
        unfinished.append(or_(col(ExportRow.has_own_run), col(ExportRow.attempt) > 0))
    for waiting in (unfinished, [_FILES_LEFT]):
        ranked = select(ExportRow.id, ExportRow.attempt, rank.label("rank")).where(*waiting, free).subquery()
        first = select(ranked.c.id, ranked.c.rank).where(ranked.c.rank <= (per_workspace or limit))
        rows_in_turn = first.order_by(ranked.c.rank, ranked.c.attempt, ranked.c.id).limit(limit)
        turns.update(db.exec(rows_in_turn).all())
    rows = db.exec(select(ExportRow).where(col(ExportRow.id).in_(turns)))
    return sorted(rows, key=lambda row: (turns[row.id], row.attempt, row.id))[:limit]


@dataclass(frozen=True)
class ExportState:
    """Workspace of an export, and whether it is unfinished without a run that holds its lease."""

    workspace_id: str
    needs_run: bool


def read_export_states(db: DbSession, export_ids: Collection[str]) -> dict[str, ExportState]:
    """Return the states of exports by id."""
    is_unfinished = or_(col(ExportRow.completed_at).is_(None), col(ExportRow.files_left).is_(True))
    states = select(ExportRow.id, ExportRow.workspace_id, and_(is_unfinished, make_lease_free_condition()))
    rows = db.exec(states.where(col(ExportRow.id).in_(export_ids)))
    return {export_id: ExportState(workspace_id, needs_run) for export_id, workspace_id, needs_run in rows}


def make_lease_free_condition() -> ColumnElement[bool]:
    """Return the condition that no run holds the lease of an export."""
    held = select(LeaseRow.name).where(
        col(LeaseRow.name) == literal(_PREFIX) + col(ExportRow.id), make_unexpired_condition(clock.now_ms())
    )
    return ~exists(held.correlate(ExportRow))


def is_export_over(row: ExportRow) -> bool:
    """Return whether an export needs no further run."""
    return row.status in ("completed", "failed") and not row.files_left


def lock_export(db: DbSession, export_id: str) -> ExportRow | None:
    """Return the current row of an export, locked until the transaction ends."""
    statement = select(ExportRow).where(ExportRow.id == export_id).with_for_update()
    return db.exec(statement.execution_options(populate_existing=True)).one_or_none()


@dataclass
class ExportClaim:
    """The right to work on an export, and the only way to change it."""

    database: Database
    export_id: str
    lease: HeldLease

    def require(self) -> None:
        """Check that this run still has the export, before its files are removed, copied or replaced.

        Raises:
            LeaseLost: if another run took over.
            ExportCancelled: if it was cancelled.
        """
        with self.transaction():
            pass
        self.lease.require_time()

    def require_lease(self) -> None:
        """Check the lease alone, whatever the export's status.

        Raises:
            LeaseLost: if another run took over.
        """
        with self.transaction_in_any_status():
            pass
        self.lease.require_time()

    @contextmanager
    def transaction(self) -> Iterator[tuple[DbSession, ExportRow]]:
        """Open a write transaction under the lease, with the row of the running export; its changes are kept.

        Raises:
            LeaseLost: if another run took over.
            ExportCancelled: if it was cancelled.
        """
        with self.transaction_in_any_status() as (db, row):
            if row.status != "running":
                raise ExportCancelled
            yield db, row

    @contextmanager
    def transaction_in_any_status(self) -> Iterator[tuple[DbSession, ExportRow]]:
        """Open a write transaction under the lease whatever the export's status, for work after its end.

        Raises:
            LeaseLost: if another run took over.
        """
        with self.lease.transaction(self.database) as db:
            row = lock_export(db, self.export_id)
            if row is None:
                raise LeaseLost
            yield db, row
            db.add(row)

    def give_back(self) -> None:
        """Release the lease, so that the next run need not wait until it expires."""
        with self.database.transaction(write=True) as db:
            self.lease.release(db)

    def kept_alive(self) -> LeaseKeeper:
        """Return a block that renews the lease while a long step runs."""
        every_s = self.lease.ttl_ms / 1000 / _BEATS_PER_LEASE
        return LeaseKeeper(self.database, lambda: [self.lease], every_s=every_s)


def claim_export(
    database: Database, db: DbSession, export_id: str, *, owner: str, lease_ms: int = LEASE_MS
) -> ExportClaim:
    """Claim an export for a run; needs a write transaction.

    Args:
        database: database for the claim's own transactions.
        db: session of the transaction that claims.
        export_id: the export.
        owner: name of the run.
        lease_ms: time after which another run may take over from one that no longer renews.

    Raises:
        ExportBusy: if another run has it.
    """
    lease = hold_lease(db, _PREFIX + export_id, owner, ttl_ms=lease_ms)
    if lease is None:
        raise ExportBusy
    return ExportClaim(database, export_id, lease)
