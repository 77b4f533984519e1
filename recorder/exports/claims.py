"""Who works on an export: the lease, checked again in every transaction of a run. Design §3."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import exists, literal
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import Conflict, Unavailable
from recorder.models.export import ExportRow
from recorder.models.outbox import LeaseRow
from recorder.storage.database import Database
from recorder.storage.leases import Lease, release_lease, renew_lease, take_lease

log = logging.getLogger("recorder.exports")

#: A killed run is followed by another after this long.
LEASE_MS = 60_000
_BEAT_SECONDS = 15.0
_PREFIX = "export:"


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


def due_exports(db: DbSession, *, limit: int) -> list[ExportRow]:
    """Exports that need a run, oldest first: queued ones, and running ones whose run was lost."""
    held = select(LeaseRow.name).where(
        col(LeaseRow.name) == literal(_PREFIX) + col(ExportRow.id), col(LeaseRow.expires_ms) > clock.now_ms()
    )
    statement = select(ExportRow).where(
        col(ExportRow.status).in_(("queued", "running")), ~exists(held.correlate(ExportRow))
    )
    return list(db.exec(statement.order_by(col(ExportRow.id)).limit(limit)))


@dataclass(frozen=True)
class Claim:
    """The right to work on an export, and the only way to change it."""

    database: Database
    export_id: str
    lease: Lease

    @contextmanager
    def transaction(self) -> Iterator[tuple[DbSession, ExportRow]]:
        """A write transaction under the lease, with the export's row; changes of the row are kept.

        Raises:
            LeaseLost: if another run took over.
        """
        with self.database.transaction(write=True) as db:
            if not renew_lease(db, self.lease, now_ms=clock.now_ms(), ttl_ms=LEASE_MS):
                raise LeaseLost
            row = db.get_one(ExportRow, self.export_id)
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
        while not done.wait(_BEAT_SECONDS):
            try:
                with self.database.transaction(write=True) as db:
                    renew_lease(db, self.lease, now_ms=clock.now_ms(), ttl_ms=LEASE_MS)
            except Unavailable:
                log.warning("the lease %s could not be renewed; trying again", self.lease.name)


def claim_export(database: Database, db: DbSession, export_id: str, *, owner: str) -> Claim:
    """Take the right to work on an export; needs a write transaction.

    Raises:
        ExportBusy: if another run has it.
    """
    lease = take_lease(db, _name(export_id), owner, now_ms=clock.now_ms(), ttl_ms=LEASE_MS)
    if lease is None:
        raise ExportBusy
    return Claim(database, export_id, lease)


def _name(export_id: str) -> str:
    return _PREFIX + export_id
