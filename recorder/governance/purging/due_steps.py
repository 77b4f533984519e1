"""Due steps of purges: work of one purge run, in which a failure stops no other workspace. Contract §2, §7.

Every step may be repeated. Purges that share a table of the lake are worked on together, and each such
group, session or workspace fails and waits for itself.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from polars.exceptions import PanicException
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder import clock
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import RecorderError
from recorder.exports.results.export_session_removal import remove_from_exports
from recorder.governance.purging.purge_rows import advance_purges, lock_purges, update_purges
from recorder.governance.purging.referring_batches import ReferringBatches
from recorder.governance.purging.session_content import remove_session_contents
from recorder.models.governance import ErasureRow, PurgeRow
from recorder.plurals import counted
from recorder.runtime import Runtime
from recorder.storage.lake_schemas import LAYOUTS
from recorder.storage.leases import HeldLease, LeaseLost

log = logging.getLogger("recorder.purges")

#: Sessions of one round: their lake rows are deleted together, so that each file is rewritten once.
_AT_ONCE = 2_000
#: Sessions whose last rows one transaction deletes.
_CONTENTS_AT_ONCE = 100
#: A reader that listed the lake's files before the deletion may open them for so long.
FILES_GRACE = timedelta(seconds=20)
#: A request that found the session before it was hidden has ended after so long: sending a body takes up to
#: 30 seconds, and storing it somewhat more.
LONGEST_REQUEST = timedelta(seconds=120)
_BATCH_PAUSE = timedelta(seconds=5)
#: A file of the lake without an end is looked at again after so long.
_FILES_PAUSE = timedelta(seconds=5)
_EXPORT_PAUSE = timedelta(seconds=10)
#: A step that failed waits for a quarter of the age of its purge, within these bounds.
_FAILURE_PAUSE = timedelta(seconds=30)
_LONGEST_FAILURE_PAUSE = timedelta(minutes=10)
_LOG_PAUSE = timedelta(seconds=10)


@dataclass
class DueStepReport:
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

    def list_rows(self) -> list[dict[str, str | int]]:
        """Return one row for each workspace and cause."""
        return [
            {"workspace_id": owner, "kind": cause, "count": count, "bytes": self.sizes[owner, cause]}
            for (owner, cause), count in sorted(self.causes.items())
        ]


class DueStepWork:
    """The work of one run, under its lease."""

    def __init__(self, runtime: Runtime, held: HeldLease) -> None:
        self._runtime = runtime
        self._held = held
        self._open_transaction = partial(held.transaction, runtime.database)
        self.report = DueStepReport()

    def work_on_due_steps(self) -> bool:
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
            self._try_groups(steps[step], lambda purge: purge.step, work)
        return any(steps.values())

    def _try_groups(
        self,
        purges: list[PurgeRow],
        key_of: Callable[[PurgeRow], Hashable],
        work: Callable[[list[PurgeRow]], None],
    ) -> list[PurgeRow]:
        """Work on purges, grouped by a key; those of a group that fails wait, and the others go on.

        Any error counts: a damaged table of one workspace must not stop the purges of the others. polars
        panics, which is no `Exception`, where a Parquet file is cut off.

        Returns:
            The purges of the groups that did not fail.
        """
        groups: dict[Hashable, list[PurgeRow]] = defaultdict(list)
        for purge in purges:
            groups[key_of(purge)].append(purge)
        passed: list[PurgeRow] = []
        for group in groups.values():
            self._held.require_time()
            try:
                work(group)
            except LeaseLost:
                raise
            except (Exception, PanicException) as error:
                self._postpone_failed(group, error)
            else:
                passed += group
        return passed

    def _postpone_failed(self, purges: list[PurgeRow], error: BaseException) -> None:
        """Log why a step failed, and let its purges wait for a quarter of their age."""
        first, now = purges[0], clock.now()
        purges_failed = counted(len(purges), "purge")
        # The trace of a store that does not answer shows nothing.
        trace = None if isinstance(error, RecorderError) else error
        log.warning(
            "the step %r of %s of workspace %s (%s) failed and is tried again: %r",
            *(first.step, purges_failed, first.workspace_id, first.mode, error.__cause__ or error),
            exc_info=trace,
        )
        self.report.failed_steps += 1
        with self._open_transaction() as db:
            for row in lock_purges(db, _list_purge_step_sessions(purges)):
                if row.step == first.step:
                    pause = max(_FAILURE_PAUSE, (now - row.requested_at) / 4)
                    row.due_at = now + min(pause, _LONGEST_FAILURE_PAUSE)
                    db.add(row)

    def _postpone(self, purges: Sequence[PurgeRow], pause: timedelta) -> None:
        if not purges:
            return
        with self._open_transaction() as db:
            update_purges(db, _list_purge_step_sessions(purges), due_at=clock.now() + pause)

    def _remove_contents(self, purges: list[PurgeRow]) -> None:
        self._try_contents(purges)
        self._runtime.database.truncate_log()

    def _try_contents(self, purges: list[PurgeRow]) -> list[PurgeRow]:
        """Remove rows and objects of sessions; return the purges of those that did not fail.

        Sessions are removed some at a time. Where that fails, each of them is tried for itself.
        """
        passed: list[PurgeRow] = []
        for start in range(0, len(purges), _CONTENTS_AT_ONCE):
            some = purges[start : start + _CONTENTS_AT_ONCE]
            self._held.require_time()
            try:
                self._remove_some_contents(some)
            except LeaseLost:
                raise
            except Exception as error:
                log.info("%d sessions are removed one by one after %r", len(some), error)
                passed += self._try_groups(some, lambda purge: purge.session_id, self._remove_some_contents)
            else:
                passed += some
        return passed

    def _remove_some_contents(self, purges: list[PurgeRow]) -> None:
        """Remove rows and objects of sessions; a purge in its first step moves to the second."""
        end = partial(
            advance_purges, session_ids=_list_purge_step_sessions(purges), from_step="content", to_step="lake"
        )
        remove_session_contents(
            self._runtime, purges, open_transaction=self._open_transaction, on_removed=end
        )

    def _delete_lake_rows(self, purges: list[PurgeRow]) -> None:
        """Delete the rows of sessions that no open batch names; the others wait."""
        batches = self._find_batches(purges)
        batch_due_at = clock.now() + _BATCH_PAUSE
        with self._open_transaction() as db:
            rows = lock_purges(db, _list_purge_step_sessions(purges))
            for row in rows:
                dates = sorted({*row.dates, *batches.dates[row.session_id]})
                if batches.is_open(row) or dates != row.dates:
                    # Stored before the deletion, which may fail until long after the batch is forgotten.
                    row.dates = dates
                    row.due_at = batch_due_at if batches.is_open(row) else row.due_at
                    db.add(row)
        ready = [row for row in rows if not batches.is_open(row)]
        self._try_groups(ready, _find_purge_step_lake_part, partial(self._delete_workflow_rows, batches))

    def _delete_workflow_rows(self, batches: ReferringBatches, purges: list[PurgeRow]) -> None:
        """Delete the lake rows of sessions of one workflow: one commit for each table."""
        first, dates = purges[0], _list_purge_step_dates(purges)
        for kind in LAYOUTS if dates else ():
            self._held.require_time()
            self._runtime.lake.delete_sessions(
                kind,
                first.tenant,
                workflow=first.workflow,
                dates=dates,
                session_ids=_list_purge_step_sessions(purges),
            )
        with self._open_transaction() as db:
            batches.forget_sessions(db, _list_purge_step_sessions(purges))
            advance_purges(
                db, _list_purge_step_sessions(purges), from_step="lake", to_step="files", after=FILES_GRACE
            )

    def _delete_files(self, purges: list[PurgeRow]) -> None:
        self._try_groups(purges, _find_purge_step_lake_part, self._delete_workflow_files)
        self._runtime.database.truncate_log()

    def _delete_workflow_files(self, purges: list[PurgeRow]) -> None:
        self._delete_dead_files(purges)
        with self._open_transaction() as db:
            advance_purges(db, _list_purge_step_sessions(purges), from_step="files", to_step="exports")

    def _remove_from_exports(self, purges: list[PurgeRow]) -> None:
        self._try_groups(purges, lambda purge: purge.workspace_id, self._remove_from_workspace_exports)

    def _remove_from_workspace_exports(self, purges: list[PurgeRow]) -> None:
        """Rewrite the exports that have the sessions; a session waits while a running export has it."""
        removal = remove_from_exports(
            self._runtime, self._held, purges[0].workspace_id, session_ids=_list_purge_step_sessions(purges)
        )
        self._postpone([purge for purge in purges if purge.session_id in removal.waiting], _EXPORT_PAUSE)
        with self._open_transaction() as db:
            rows = lock_purges(db, _list_purge_step_sessions(purges))
            for erasure_id, export_ids in _group_purge_step_exports(rows, removal.out_of_reach).items():
                _store_unreached_step_exports(db, erasure_id, export_ids)
            for requested_at, ids in _group_purges_by_request(rows).items():
                update_purges(
                    db,
                    [each for each in ids if each not in {*removal.waiting, *removal.errors}],
                    from_step="exports",
                    step="final_pass",
                    due_at=requested_at + LONGEST_REQUEST,
                )
        for purge in purges:
            if purge.session_id in removal.errors:
                self._postpone_failed([purge], removal.errors[purge.session_id])

    def _end_purges(self, purges: list[PurgeRow]) -> None:
        """Remove what requests under way stored since, clean the lake's logs, and end the purges."""
        batches = self._find_batches(purges)
        late = [purge for purge in purges if batches.dates[purge.session_id]]
        ending = [purge for purge in purges if not batches.dates[purge.session_id]]
        if late:
            # A batch was claimed in the moment in which the session was hidden.
            with self._open_transaction() as db:
                advance_purges(db, _list_purge_step_sessions(late), from_step="final_pass", to_step="lake")
        ending = self._try_contents(ending)
        unfinished: list[PurgeRow] = []
        ending = self._try_groups(
            ending,
            _find_purge_step_lake_part,
            lambda group: unfinished.extend(group if self._delete_dead_files(group) else ()),
        )
        self._postpone(unfinished, _FILES_PAUSE)
        waiting = set(_list_purge_step_sessions(unfinished))
        ending = [purge for purge in ending if purge.session_id not in waiting]
        ending = self._try_groups(ending, lambda purge: (purge.tenant, bool(purge.dates)), self._clean_logs)
        if not self._runtime.database.truncate_log():
            self._postpone(ending, _LOG_PAUSE)
            return
        self._mark_purges_done(ending)

    def _clean_logs(self, purges: list[PurgeRow]) -> None:
        """Clean the logs of the tables of one tenant, unless its purged sessions had no rows in the lake."""
        first = purges[0]
        for kind in LAYOUTS if first.dates else ():
            self._held.require_time()
            self._runtime.lake.clean_log(kind, first.tenant)

    def _mark_purges_done(self, purges: list[PurgeRow]) -> None:
        """Mark purges as done, of which the audit log gets one entry for each workspace."""
        ended = DueStepReport()
        with self._open_transaction() as db:
            rows = [
                row for row in lock_purges(db, _list_purge_step_sessions(purges)) if row.step == "final_pass"
            ]
            for row in rows:
                ended.count(row)
                self.report.count(row)
            forgotten_ids = [row.session_id for row in rows if row.cause == "erasure"]
            # Not by the session, which would compare each of its rows with each id.
            db.connection().execute(delete(PurgeRow).where(col(PurgeRow.session_id).in_(forgotten_ids)))
            finished_ids = [row.session_id for row in rows if row.cause != "erasure"]
            update_purges(db, finished_ids, step="done", done_at=clock.now())
            for workspace_id in sorted({workspace_id for workspace_id, _ in ended.causes}):
                causes = {
                    cause: count for (owner, cause), count in ended.causes.items() if owner == workspace_id
                }
                record_audit_entry(
                    db,
                    Origin.system(workspace_id, "retention"),
                    "session.purge",
                    resource_type="workspace",
                    resource_id=workspace_id,
                    details={"sessions": sum(causes.values()), "causes": causes},
                )

    def _delete_dead_files(self, purges: list[PurgeRow]) -> int:
        """Delete files that hold deleted rows; return the number of those that some run may be writing."""
        first, dates = purges[0], _list_purge_step_dates(purges)
        unfinished = 0
        for kind in LAYOUTS if dates else ():
            self._held.require_time()
            dead = self._runtime.lake.delete_dead_files(
                kind,
                first.tenant,
                workflow=first.workflow,
                dates=dates,
                session_ids=_list_purge_step_sessions(purges),
            )
            unfinished += dead.unfinished
        return unfinished

    def _find_batches(self, purges: list[PurgeRow]) -> ReferringBatches:
        with self._runtime.database.transaction(write=False) as db:
            return ReferringBatches(db, purges)


def _list_purge_step_sessions(purges: Sequence[PurgeRow]) -> list[str]:
    return [purge.session_id for purge in purges]


def _find_purge_step_lake_part(purge: PurgeRow) -> Hashable:
    """Return the part of the lake that a purge needs; sessions without rows in the lake are apart."""
    return purge.tenant, purge.workflow, bool(purge.dates)


def _list_purge_step_dates(purges: list[PurgeRow]) -> list[str]:
    """Return the dates of the lake's partitions that may hold rows of the sessions."""
    return sorted({date for purge in purges for date in purge.dates})


def _group_purges_by_request(purges: list[PurgeRow]) -> dict[datetime, list[str]]:
    """Return the session ids by the time of the request; those of an erasure were requested together."""
    groups: dict[datetime, list[str]] = defaultdict(list)
    for purge in purges:
        groups[purge.requested_at].append(purge.session_id)
    return groups


def _group_purge_step_exports(purges: list[PurgeRow], exports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the exports by the erasures of their sessions.

    Args:
        purges: purges of the sessions.
        exports: ids of exports by session.
    """
    groups: dict[str, set[str]] = defaultdict(set)
    for purge in purges:
        if purge.erasure_id is not None:
            groups[purge.erasure_id] |= exports.get(purge.session_id, set())
    return groups


def _store_unreached_step_exports(db: DbSession, erasure_id: str, export_ids: set[str]) -> None:
    """Store the exports that an erasure cannot reach."""
    erasure = db.get(ErasureRow, erasure_id, with_for_update=True, populate_existing=True)
    if erasure is not None and not export_ids <= set(erasure.exports):
        erasure.exports = sorted({*erasure.exports, *export_ids})
        db.add(erasure)
