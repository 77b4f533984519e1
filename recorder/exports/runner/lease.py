"""Claims of exports: the lease of a run, checked again in every transaction. Design §3."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import ColumnElement, exists, func, literal, or_, text
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import Conflict, RecorderError
from recorder.models.export import ExportRow
from recorder.models.operations import LeaseRow
from recorder.storage.database import Database
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost, hold_lease

#: A killed run is followed by another after this long.
LEASE_MS = 60_000
_BEATS_PER_LEASE = 4
_PREFIX = "export:"
# Written as in the partial index.
_FILES_LEFT = text("files_left")


class ExportBusy(Conflict):
    """Another run works on this export."""

    code = "export_busy"

    def __init__(self) -> None:
        super().__init__("Another run works on this export; wait for it to end.")


class ExportCancelled(RecorderError):
    """Somebody called the export off."""

    code = "cancelled"
    title = "Cancelled"

    def __init__(self) -> None:
        super().__init__("The export was cancelled.")


def due_exports(
    db: DbSession, *, limit: int, per_workspace: int | None = None, first_tries: bool = True
) -> list[ExportRow]:
    """Exports that need a run: those that had fewest first, then the oldest.

    Queued ones, running ones whose run was lost, and failed ones whose files nobody has taken away yet. An
    export whose store is gone is run again and again: it goes behind what has not been tried as often.

    Args:
        per_workspace: no more than so many of each; one client's exports must not keep out everybody else's.
        first_tries: whether to return exports that the process for small exports has not looked at.
    """
    free = is_free()
    order = (col(ExportRow.attempt), col(ExportRow.id))
    place = func.row_number().over(partition_by=col(ExportRow.workspace_id), order_by=order)
    ids: set[str] = set()
    unfinished: list[ColumnElement[bool]] = [col(ExportRow.status).in_(("queued", "running"))]
    if not first_tries:
        unfinished.append(or_(col(ExportRow.has_own_run), col(ExportRow.attempt) > 0))
    for waiting in (unfinished, [_FILES_LEFT]):
        ranked = (
            select(ExportRow.id, ExportRow.attempt, place.label("place")).where(*waiting, free).subquery()
        )
        first = select(ranked.c.id).order_by(ranked.c.attempt, ranked.c.id).limit(limit)
        ids.update(db.exec(first.where(ranked.c.place <= (per_workspace or limit))))
    found = db.exec(select(ExportRow).where(col(ExportRow.id).in_(ids)).order_by(*order))
    return list(found)[:limit]


def is_free() -> ColumnElement[bool]:
    """Return the condition that no run holds the lease of an export."""
    held = select(LeaseRow.name).where(
        col(LeaseRow.name) == literal(_PREFIX) + col(ExportRow.id), col(LeaseRow.expires_ms) > clock.now_ms()
    )
    return ~exists(held.correlate(ExportRow))


def is_over(row: ExportRow) -> bool:
    """Whether nothing is left to do for an export."""
    return row.status in ("completed", "failed") and not row.files_left


def lock_export(db: DbSession, export_id: str) -> ExportRow | None:
    """The row of an export as it is now, kept from others until the transaction ends."""
    statement = select(ExportRow).where(ExportRow.id == export_id).with_for_update()
    return db.exec(statement.execution_options(populate_existing=True)).one_or_none()


@dataclass
class Claim:
    """The right to work on an export, and the only way to change it."""

    database: Database
    export_id: str
    lease: HeldLease

    def require(self) -> None:
        """Check that the export is still ours, right before files of it are removed, copied or replaced.

        Raises:
            LeaseLost: if another run took over.
            ExportCancelled: if it was cancelled meanwhile.
        """
        with self.transaction():
            pass
        self.lease.require_time()

    def require_lease(self) -> None:
        """Check the lease alone, whatever the export's status.

        Raises:
            LeaseLost: if another run took over.
        """
        with self.ending_transaction():
            pass
        self.lease.require_time()

    @contextmanager
    def transaction(self) -> Iterator[tuple[DbSession, ExportRow]]:
        """Open a write transaction under the lease, with the row of the running export; its changes are kept.

        Raises:
            LeaseLost: if another run took over.
            ExportCancelled: if it was cancelled meanwhile.
        """
        with self.ending_transaction() as (db, row):
            if row.status != "running":
                raise ExportCancelled
            yield db, row

    @contextmanager
    def ending_transaction(self) -> Iterator[tuple[DbSession, ExportRow]]:
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
        """Let the next run begin without waiting for the lease to run out."""
        with self.database.transaction(write=True) as db:
            self.lease.release(db)

    def kept_alive(self) -> LeaseKeeper:
        """Return a block that renews the lease while a long step runs."""
        every_s = self.lease.ttl_ms / 1000 / _BEATS_PER_LEASE
        return LeaseKeeper(self.database, lambda: [self.lease], every_s=every_s)


def claim_export(
    database: Database, db: DbSession, export_id: str, *, owner: str, lease_ms: int = LEASE_MS
) -> Claim:
    """Take the right to work on an export; needs a write transaction.

    Args:
        database: where the claim's own transactions go.
        db: the transaction that claims.
        export_id: the export.
        owner: name of the run.
        lease_ms: how long a run that falls silent keeps the right.

    Raises:
        ExportBusy: if another run has it.
    """
    lease = hold_lease(db, _PREFIX + export_id, owner, ttl_ms=lease_ms)
    if lease is None:
        raise ExportBusy
    return Claim(database, export_id, lease)
