"""Who works on an export: the lease, checked again in every transaction of a run. Design §3."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import exists, literal, text
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import Conflict, RecorderError, Unavailable
from recorder.models.export import ExportRow
from recorder.models.outbox import LeaseRow
from recorder.storage.database import Database
from recorder.storage.leases import Lease, release_lease, renew_lease, take_lease

log = logging.getLogger("recorder.exports")

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


class LeaseLost(Conflict):
    """Another run took the export over."""

    code = "lease_lost"

    def __init__(self) -> None:
        super().__init__("The export's lease ran out and another run took it.")


class ExportCancelled(RecorderError):
    """Somebody called the export off."""

    code = "cancelled"
    title = "Cancelled"

    def __init__(self) -> None:
        super().__init__("The export was cancelled.")


def due_exports(db: DbSession, *, limit: int) -> list[ExportRow]:
    """Exports that need a run, oldest first.

    Queued ones, running ones whose run was lost, and failed ones whose files nobody has taken away yet.
    """
    held = select(LeaseRow.name).where(
        col(LeaseRow.name) == literal(_PREFIX) + col(ExportRow.id), col(LeaseRow.expires_ms) > clock.now_ms()
    )
    free = ~exists(held.correlate(ExportRow))
    found = [
        row
        for waiting in (col(ExportRow.status).in_(("queued", "running")), _FILES_LEFT)
        for row in db.exec(select(ExportRow).where(waiting, free).order_by(col(ExportRow.id)).limit(limit))
    ]
    return sorted(found, key=lambda row: row.id)[:limit]


def is_over(row: ExportRow) -> bool:
    """Whether nothing is left to do for an export."""
    return row.status in ("completed", "failed") and not row.files_left


def lock_export(db: DbSession, export_id: str) -> ExportRow | None:
    """The row of an export as it is now, kept from others until the transaction ends."""
    statement = select(ExportRow).where(ExportRow.id == export_id).with_for_update()
    return db.exec(statement.execution_options(populate_existing=True)).one_or_none()


@dataclass(frozen=True)
class Claim:
    """The right to work on an export, and the only way to change it."""

    database: Database
    export_id: str
    lease: Lease
    lease_ms: int = LEASE_MS

    @contextmanager
    def transaction(self) -> Iterator[tuple[DbSession, ExportRow]]:
        """A write transaction under the lease, with the row of the running export; its changes are kept.

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
        """The same whatever the export's status, for what is done after its end.

        Raises:
            LeaseLost: if another run took over.
        """
        with self.database.transaction(write=True) as db:
            if not renew_lease(db, self.lease, now_ms=clock.now_ms(), ttl_ms=self.lease_ms):
                raise LeaseLost
            row = lock_export(db, self.export_id)
            if row is None:
                raise LeaseLost
            yield db, row
            db.add(row)

    def give_back(self) -> None:
        """Let the next run begin without waiting for the lease to run out."""
        with self.database.transaction(write=True) as db:
            release_lease(db, self.lease)

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Renew the lease while a long step runs; the beat of a killed process stops."""
        done = threading.Event()
        thread = threading.Thread(target=self._beat, args=(done,), name="export-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _beat(self, done: threading.Event) -> None:
        while not done.wait(self.lease_ms / 1000 / _BEATS_PER_LEASE):
            try:
                with self.database.transaction(write=True) as db:
                    renew_lease(db, self.lease, now_ms=clock.now_ms(), ttl_ms=self.lease_ms)
            except Unavailable:
                log.warning("the lease %s could not be renewed; trying again", self.lease.name)


def claim_export(
    database: Database, db: DbSession, export_id: str, *, owner: str, lease_ms: int = LEASE_MS
) -> Claim:
    """Take the right to work on an export; needs a write transaction.

    Args:
        lease_ms: how long a run that falls silent keeps the right.

    Raises:
        ExportBusy: if another run has it.
    """
    lease = take_lease(db, _name(export_id), owner, now_ms=clock.now_ms(), ttl_ms=lease_ms)
    if lease is None:
        raise ExportBusy
    return Claim(database, export_id, lease, lease_ms)


def _name(export_id: str) -> str:
    return _PREFIX + export_id
