"""Purges: one routine that removes hidden sessions from every store, step by step. Contract §2, §7.

The intent is a row, written in the transaction that hides the session. A run works on the steps under a
lease; every step may be repeated, so a run that was killed is continued by the next one. Lake rows are
deleted once no open batch names the session, and old files later, since readers may still open them.
"""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.audit.log import Origin, record
from recorder.errors import RecorderError
from recorder.exports.results.purged_sessions import remove_from_exports
from recorder.governance.naming_batches import NamingBatches
from recorder.governance.session_content import remove_content
from recorder.models.governance import ErasureRow, PurgeCause, PurgeRow, PurgeStep
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.storage.lake_schemas import LAYOUTS
from recorder.storage.leases import HeldLease, LeaseKeeper, LeaseLost, lease_for_block
from recorder.tenant import Tenant

log = logging.getLogger("recorder.purges")

LEASE = "purges"
#: A killed run is followed by another one after this time.
_LEASE_MS = 60_000
_BEATS_PER_LEASE = 4
#: Sessions of one round: their lake rows are deleted together.
_AT_ONCE = 100
#: A reader that listed the lake's files before the deletion may open them for so long.
FILES_GRACE = timedelta(seconds=20)
#: A request that found the session before it was hidden has ended after so long: sending a body takes up to
#: 30 seconds, and storing it somewhat more.
LONGEST_REQUEST = timedelta(seconds=120)
_BATCH_PAUSE = timedelta(seconds=5)
_EXPORT_PAUSE = timedelta(seconds=10)
_FAILURE_PAUSE = timedelta(seconds=30)
_LOG_PAUSE = timedelta(seconds=10)
_LONGEST_SLEEP_S = 1.0


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


def remove_at_once(runtime: Runtime, purge: PurgeRow) -> None:
    """Remove the rows and objects of a session now; a run does the rest.

    Raises:
        Unavailable: if a store or the database does not answer; a run tries again.
    """
    remove_content(
        runtime,
        purge,
        open_transaction=partial(runtime.database.transaction, write=True),
        on_removed=lambda db: _advance(db, [purge.session_id], from_step="content", to_step="lake"),
    )


@dataclass
class PurgeReport:
    """Counts of the purges that a run finished."""

    sessions: int = 0
    events: int = 0
    frames: int = 0
    event_bytes: int = 0
    frame_bytes: int = 0
    #: Finished purges by workspace and cause.
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Bytes by workspace and cause.
    sizes: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Steps that failed and are tried again by a later run.
    failed_steps: int = 0

    def count(self, purge: PurgeRow) -> None:
        """Count a finished purge."""
        self.sessions += 1
        self.events += purge.events
        self.frames += purge.frames
        self.event_bytes += purge.event_bytes
        self.frame_bytes += purge.frame_bytes
        self.causes[purge.workspace_id, purge.cause] += 1
        self.sizes[purge.workspace_id, purge.cause] += purge.event_bytes + purge.frame_bytes


def next_due(db: DbSession) -> datetime | None:
    """Return when the next step of a purge is due; None if no purge is open."""
    return db.exec(select(func.min(PurgeRow.due_at)).where(PurgeRow.step != "done")).one()


def run_purges(
    runtime: Runtime,
    owner: str,
    *,
    patience_s: float = 0.0,
    is_stopping: Callable[[], bool] = lambda: False,
    lease_ms: int = _LEASE_MS,
) -> PurgeReport | None:
    """Work on all steps that are due, and on those that become due while the run waits.

    Args:
        runtime: the deployment.
        owner: name of the run.
        patience_s: seconds to wait for the next step.
        is_stopping: whether to end before the next round.
        lease_ms: duration of the lease.

    Returns:
        The finished purges; None if another run holds the lease.

    Raises:
        LeaseLost: if another run took the lease.
    """
    with lease_for_block(runtime.database, LEASE, owner, ttl_ms=lease_ms) as held:
        if held is None:
            return None
        every_s = lease_ms / 1000 / _BEATS_PER_LEASE
        with LeaseKeeper(runtime.database, lambda: [held], every_s=every_s):
            run = _PurgeRun(runtime, held)
            while not is_stopping() and (run.work() or _wait_for_step(runtime, patience_s)):
                continue
            return run.report


def _wait_for_step(runtime: Runtime, patience_s: float) -> bool:
    """Wait a moment for the next step; return False if none becomes due within the patience."""
    with runtime.database.transaction(write=False) as db:
        due_at = next_due(db)
    left_s = None if due_at is None else (due_at - clock.now()).total_seconds()
    if left_s is None or left_s > patience_s:
        return False
    time.sleep(min(max(left_s, 0.0), _LONGEST_SLEEP_S))
    return True


class _PurgeRun:
    """The work of one run, under its lease."""

    def __init__(self, runtime: Runtime, held: HeldLease) -> None:
        self._runtime = runtime
        self._held = held
        self._open_transaction = partial(held.transaction, runtime.database)
        self.report = PurgeReport()

    def work(self) -> bool:
        """Work on some steps that are due; return False if there are none."""
        steps: dict[str, list[PurgeRow]] = defaultdict(list)
        with self._runtime.database.transaction(write=False) as db:
            is_due = (PurgeRow.step != "done", col(PurgeRow.due_at) <= clock.now())
            due = select(PurgeRow).where(*is_due).order_by(col(PurgeRow.due_at), col(PurgeRow.session_id))
            for purge in db.exec(due.limit(_AT_ONCE)):
                steps[purge.step].append(purge)
        for step, work in (
            ("content", self._remove_contents),
            ("lake", self._delete_lake_rows),
            ("files", self._delete_files),
            ("exports", self._remove_from_exports),
            ("final_pass", self._end_purges),
        ):
            if step in steps:
                self._try_step(work, steps[step])
        return bool(steps)

    def _try_step(self, work: Callable[[list[PurgeRow]], None], purges: list[PurgeRow]) -> None:
        """Work on a step; where a store does not answer, the purges wait and the others go on."""
        try:
            work(purges)
        except LeaseLost:
            raise
        except RecorderError as error:
            log.warning("%d purge(s) wait for another try: %s", len(purges), error)
            self.report.failed_steps += 1
            self._postpone(purges, _FAILURE_PAUSE)

    def _postpone(self, purges: Sequence[PurgeRow], pause: timedelta) -> None:
        due_at = clock.now() + pause
        with self._open_transaction() as db:
            for row in _lock_purges(db, [purge.session_id for purge in purges]):
                row.due_at = due_at
                db.add(row)

    def _remove_contents(self, purges: list[PurgeRow]) -> None:
        for purge in purges:
            remove_content(
                self._runtime,
                purge,
                open_transaction=self._open_transaction,
                on_removed=partial(
                    _advance, session_ids=[purge.session_id], from_step="content", to_step="lake"
                ),
            )
        self._runtime.database.truncate_log()

    def _delete_lake_rows(self, purges: list[PurgeRow]) -> None:
        """Delete the rows of sessions that no open batch names; the others wait."""
        batches = self._find_batches(purges)
        waiting = [purge for purge in purges if batches.is_open(purge)]
        ready = [purge for purge in purges if not batches.is_open(purge)]
        if waiting:
            self._postpone(waiting, _BATCH_PAUSE)
        for (tenant, workflow, date), ids in _group_by_partition(ready, batches.dates).items():
            for kind in LAYOUTS:
                self._held.require_time()
                self._runtime.lake.delete_sessions(
                    kind, tenant, workflow=workflow, date=date, session_ids=ids
                )
        with self._open_transaction() as db:
            ids = [purge.session_id for purge in ready]
            batches.forget_sessions(db)
            for row in _lock_purges(db, ids):
                row.dates = sorted({*row.dates, *batches.dates[row.session_id]})
                db.add(row)
            _advance(db, ids, from_step="lake", to_step="files", after=FILES_GRACE)

    def _delete_files(self, purges: list[PurgeRow]) -> None:
        self._delete_dead_files(purges)
        with self._open_transaction() as db:
            _advance(db, [purge.session_id for purge in purges], from_step="files", to_step="exports")
        self._runtime.database.truncate_log()

    def _remove_from_exports(self, purges: list[PurgeRow]) -> None:
        """Rewrite the exports that have the sessions; a session waits while a running export has it."""
        removal = remove_from_exports(
            self._runtime, self._held, {purge.session_id: purge.cause for purge in purges}
        )
        self._postpone([purge for purge in purges if purge.session_id in removal.waiting], _EXPORT_PAUSE)
        with self._open_transaction() as db:
            for row in _lock_purges(db, [purge.session_id for purge in purges]):
                if row.erasure_id is not None:
                    _note_exports(db, row.erasure_id, removal.out_of_reach.get(row.session_id, set()))
                if row.step == "exports" and row.session_id not in removal.waiting:
                    row.step, row.due_at = "final_pass", row.requested_at + LONGEST_REQUEST
                    db.add(row)

    def _end_purges(self, purges: list[PurgeRow]) -> None:
        """Remove what requests under way stored since, clean the lake's logs, and end the purges."""
        batches = self._find_batches(purges)
        late = [purge for purge in purges if batches.dates[purge.session_id]]
        ending = [purge for purge in purges if not batches.dates[purge.session_id]]
        if late:
            # A batch was claimed in the moment in which the session was hidden.
            with self._open_transaction() as db:
                _advance(db, [purge.session_id for purge in late], from_step="final_pass", to_step="lake")
        for purge in ending:
            remove_content(self._runtime, purge, open_transaction=self._open_transaction)
        self._delete_dead_files(ending)
        for tenant in sorted({purge.tenant for purge in ending if purge.dates}):
            for kind in LAYOUTS:
                self._held.require_time()
                self._runtime.lake.clean_log(kind, tenant)
        if not self._runtime.database.truncate_log():
            self._postpone(ending, _LOG_PAUSE)
            return
        self._end(ending)

    def _end(self, purges: list[PurgeRow]) -> None:
        """Mark purges as done, of which the audit log gets one entry for each workspace."""
        ended = PurgeReport()
        with self._open_transaction() as db:
            for row in _lock_purges(db, [purge.session_id for purge in purges]):
                if row.step != "final_pass":
                    continue
                ended.count(row)
                self.report.count(row)
                if row.cause == "erasure":
                    db.delete(row)
                    continue
                row.step, row.done_at = "done", clock.now()
                db.add(row)
            for workspace_id in sorted({workspace_id for workspace_id, _ in ended.causes}):
                causes = {
                    cause: count for (owner, cause), count in ended.causes.items() if owner == workspace_id
                }
                record(
                    db,
                    Origin.system(workspace_id, "retention"),
                    "session.purge",
                    resource_type="workspace",
                    resource_id=workspace_id,
                    details={"sessions": sum(causes.values()), "causes": causes},
                )

    def _delete_dead_files(self, purges: list[PurgeRow]) -> None:
        for (tenant, workflow, date), ids in _group_by_partition(purges, {}).items():
            for kind in LAYOUTS:
                self._held.require_time()
                self._runtime.lake.delete_dead_files(
                    kind, tenant, workflow=workflow, date=date, session_ids=ids
                )

    def _find_batches(self, purges: list[PurgeRow]) -> NamingBatches:
        with self._runtime.database.transaction(write=False) as db:
            return NamingBatches(db, purges)


def _group_by_partition(
    purges: list[PurgeRow], more_dates: "defaultdict[str, set[str]] | dict[str, set[str]]"
) -> dict[tuple[Tenant, str, str], list[str]]:
    """Return the session ids of each lake partition."""
    groups: dict[tuple[Tenant, str, str], list[str]] = {}
    for purge in purges:
        for date in sorted({*purge.dates, *more_dates.get(purge.session_id, ())}):
            groups.setdefault((purge.tenant, purge.workflow, date), []).append(purge.session_id)
    return groups


def _lock_purges(db: DbSession, session_ids: Sequence[str]) -> list[PurgeRow]:
    statement = select(PurgeRow).where(col(PurgeRow.session_id).in_(session_ids))
    ordered = statement.order_by(col(PurgeRow.session_id)).with_for_update()
    return list(db.exec(ordered.execution_options(populate_existing=True)))


def _note_exports(db: DbSession, erasure_id: str, export_ids: set[str]) -> None:
    """Store the exports that an erasure cannot reach."""
    erasure = db.get(ErasureRow, erasure_id, with_for_update=True, populate_existing=True)
    if erasure is not None and not export_ids <= set(erasure.exports):
        erasure.exports = sorted({*erasure.exports, *export_ids})
        db.add(erasure)


def _advance(
    db: DbSession,
    session_ids: Sequence[str],
    *,
    from_step: PurgeStep,
    to_step: Literal["lake", "files", "exports"],
    after: timedelta = timedelta(0),
) -> None:
    """Move purges to their next step; those that another process moved stay where they are."""
    due_at = clock.now() + after
    for row in _lock_purges(db, session_ids):
        if row.step == from_step:
            row.step, row.due_at = to_step, due_at
            db.add(row)
