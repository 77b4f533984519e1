"""Due steps of purges: work of one purge run, in which a failure stops no other workspace. Contract §2, §7.

A round works on the purges of one workspace for some seconds, and what it leaves is due again. Every step may
be repeated. Purges of a workspace are worked on together; where that fails, each workflow, session or
workspace fails and waits for itself.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial

from sqlmodel import col, delete

from recorder import clock
from recorder.audit.log import Origin, record_audit_entry
from recorder.exports.results.export_session_removal import remove_from_exports
from recorder.governance.purging.purge_rounds import PurgeRounds
from recorder.governance.purging.purge_rows import advance_purges, lock_purges, update_purges
from recorder.governance.purging.purge_scheduler import PurgeScheduler
from recorder.governance.purging.referring_batches import ReferringBatches
from recorder.governance.purging.session_content import remove_session_contents
from recorder.governance.purging.step_report import DueStepReport
from recorder.models.governance import PurgeRow
from recorder.runtime import Runtime
from recorder.storage.lake_cleanup import LOG_GRACE
from recorder.storage.lake_schemas import LAYOUTS, LakePartition
from recorder.storage.leases import HeldLease
from recorder.storage.store_regions import require_store_marks
from recorder.tenant import Tenant

#: A round begins no further work after this. What it is doing then may be the rewriting of a whole export.
_ROUND_S = 10.0
#: Sessions whose last rows one transaction deletes.
_CONTENTS_AT_ONCE = 100
#: A reader that listed the lake's files before the deletion may open them for so long.
FILES_GRACE = timedelta(seconds=20)
#: A request that found the session before it was hidden has ended after so long: sending a body takes up to
#: 30 seconds, and storing it somewhat more.
LONGEST_REQUEST = timedelta(seconds=120)
_BATCH_PAUSE = timedelta(seconds=5)
#: Pause before a data file without a footer, which a run may still be writing, is checked again.
_FILES_PAUSE = timedelta(seconds=5)
_EXPORT_PAUSE = timedelta(seconds=10)
_LOG_PAUSE = timedelta(seconds=10)


class DueStepWork:
    """The work of one run, under its lease."""

    def __init__(self, runtime: Runtime, held: HeldLease, *, round_s: float = _ROUND_S) -> None:
        """Prepare a run.

        Args:
            runtime: the deployment.
            held: lease of the run.
            round_s: seconds after which a round ends.
        """
        self._runtime = runtime
        self._held = held
        self._scheduler = PurgeScheduler(runtime)
        self._rounds = PurgeRounds(runtime, held, round_s=round_s)
        #: The export that the last round of a workspace and mode visited last; None if it visited all.
        self._last_export_ids: dict[Tenant, str | None] = {}

    @property
    def report(self) -> DueStepReport:
        """Counts of the purges that were finished."""
        return self._rounds.report

    def work_on_due_steps(self) -> bool:
        """Work on due steps of one workspace and mode for some seconds; return False if none is due.

        Raises:
            StoreAway: if a store is away, which would seem to hold nothing.
        """
        steps: dict[str, list[PurgeRow]] = defaultdict(list)
        with self._scheduler.take() as purges:
            if purges:
                require_store_marks(self._runtime.settings)
            self._rounds.begin()
            for purge in purges:
                steps[purge.step].append(purge)
            # The last step first, so that later rounds end what this one begins before they begin more.
            for step, work in (
                ("final_pass", self._end_purges),
                ("exports", self._remove_from_exports),
                ("files", self._delete_files),
                ("lake", self._delete_lake_rows),
                ("content", self._remove_contents),
            ):
                if steps[step]:
                    self._rounds.try_groups(steps[step], lambda purge: purge.step, work)
                    if self._rounds.is_time_up():
                        break
        return bool(purges)

    def _remove_contents(self, purges: list[PurgeRow]) -> None:
        self._try_contents(purges)
        self._runtime.database.truncate_log()

    def _try_contents(self, purges: list[PurgeRow]) -> list[PurgeRow]:
        """Remove rows and objects of sessions, some at a time; return the purges of those that are done."""
        passed: list[PurgeRow] = []
        for start in range(0, len(purges), _CONTENTS_AT_ONCE):
            if start and self._rounds.is_time_up():
                break
            some = purges[start : start + _CONTENTS_AT_ONCE]
            passed += self._rounds.try_together(
                some, lambda purge: purge.session_id, self._remove_some_contents
            )
        return passed

    def _remove_some_contents(self, purges: list[PurgeRow]) -> bool:
        """Remove rows and objects of sessions; a purge in its first step moves to the second."""
        end = partial(
            advance_purges, session_ids=_list_purge_step_sessions(purges), from_step="content", to_step="lake"
        )
        return remove_session_contents(
            self._runtime,
            purges,
            open_transaction=self._rounds.open_transaction,
            on_removed=end,
            is_time_up=self._rounds.is_time_up,
        )

    def _delete_lake_rows(self, purges: list[PurgeRow]) -> None:
        """Delete the rows of sessions that no open batch names; the others wait."""
        batches = self._find_batches(purges)
        batch_due_at = clock.now() + _BATCH_PAUSE
        with self._rounds.open_transaction() as db:
            rows = lock_purges(db, _list_purge_step_sessions(purges))
            for row in rows:
                dates = sorted({*row.dates, *batches.dates[row.session_id]})
                if batches.is_open(row) or dates != row.dates:
                    # Stored before the deletion, which may fail until long after the batch is forgotten.
                    row.dates = dates
                    row.due_at = batch_due_at if batches.is_open(row) else row.due_at
                    db.add(row)
        ready = [row for row in rows if not batches.is_open(row)]
        self._try_lake_parts(ready, partial(self._delete_some_lake_rows, batches))

    def _try_lake_parts(
        self, purges: Sequence[PurgeRow], work: Callable[[list[PurgeRow]], object]
    ) -> list[PurgeRow]:
        """Work on the part of the lake that has rows of the sessions; those without such rows are apart."""
        passed: list[PurgeRow] = []
        for has_rows in (False, True):
            some = [purge for purge in purges if bool(purge.dates) is has_rows]
            passed += self._rounds.try_together(some, lambda purge: purge.workflow, work)
        return passed

    def _delete_some_lake_rows(self, batches: ReferringBatches, purges: list[PurgeRow]) -> bool:
        """Delete lake rows of sessions, by one commit for each table where the time suffices."""
        session_ids, partitions = _list_purge_step_sessions(purges), _list_purge_step_partitions(purges)
        for kind in LAYOUTS if partitions else ():
            self._held.require_time()
            deleted = self._runtime.lake.delete_sessions(
                kind,
                purges[0].tenant,
                partitions=partitions,
                session_ids=session_ids,
                is_time_up=self._rounds.is_time_up,
            )
            if not deleted.is_complete:
                return False
        with self._rounds.open_transaction() as db:
            batches.forget_sessions(db, session_ids)
            advance_purges(db, session_ids, from_step="lake", to_step="files", after=FILES_GRACE)
        return True

    def _delete_files(self, purges: list[PurgeRow]) -> None:
        """Delete lake files that held rows of these sessions, and advance the purges to their exports."""
        self._try_lake_parts(purges, self._delete_some_files)
        self._runtime.database.truncate_log()

    def _delete_some_files(self, purges: list[PurgeRow]) -> None:
        self._delete_dead_files(purges)
        with self._rounds.open_transaction() as db:
            advance_purges(db, _list_purge_step_sessions(purges), from_step="files", to_step="exports")

    def _remove_from_exports(self, purges: list[PurgeRow]) -> None:
        """Rewrite the exports that have the sessions; a session waits while a running export has it."""
        tenant = purges[0].tenant
        removal = remove_from_exports(
            self._runtime,
            self._held,
            tenant.workspace_id,
            session_ids=_list_purge_step_sessions(purges),
            after=self._last_export_ids.get(tenant),
            is_time_up=self._rounds.is_time_up,
        )
        self._last_export_ids[tenant] = removal.last_export_id
        self._rounds.postpone(
            [purge for purge in purges if purge.session_id in removal.waiting], _EXPORT_PAUSE
        )
        staying = {*removal.waiting, *removal.errors, *removal.unvisited}
        with self._rounds.open_transaction() as db:
            rows = lock_purges(db, _list_purge_step_sessions(purges))
            for requested_at, ids in _group_purges_by_request(rows).items():
                update_purges(
                    db,
                    [each for each in ids if each not in staying],
                    from_step="exports",
                    step="final_pass",
                    # The logs' entries of before the deletion are old enough to be cleaned then.
                    due_at=max(requested_at + LONGEST_REQUEST, clock.now() + LOG_GRACE),
                )
        for purge in purges:
            if purge.session_id in removal.errors:
                self._rounds.postpone_failed([purge], removal.errors[purge.session_id])

    def _end_purges(self, purges: list[PurgeRow]) -> None:
        """Remove what requests under way stored since, clean the lake's logs, and end the purges."""
        batches = self._find_batches(purges)
        late = [purge for purge in purges if batches.dates[purge.session_id]]
        ending = [purge for purge in purges if not batches.dates[purge.session_id]]
        if late:
            # A batch was claimed in the moment in which the session was hidden.
            with self._rounds.open_transaction() as db:
                advance_purges(db, _list_purge_step_sessions(late), from_step="final_pass", to_step="lake")
        unfinished: set[LakePartition] = set()
        ending = self._try_lake_parts(
            self._try_contents(ending), lambda some: unfinished.update(self._delete_dead_files(some))
        )
        waiting = [purge for purge in ending if unfinished.intersection(_list_purge_step_partitions([purge]))]
        self._rounds.postpone(waiting, _FILES_PAUSE)
        waiting_ids = set(_list_purge_step_sessions(waiting))
        ending = [purge for purge in ending if purge.session_id not in waiting_ids]
        ending = self._rounds.try_groups(ending, lambda purge: bool(purge.dates), self._clean_logs)
        if not self._runtime.database.truncate_log():
            self._rounds.postpone(ending, _LOG_PAUSE)
            return
        self._mark_purges_done(ending)

    def _clean_logs(self, purges: list[PurgeRow]) -> None:
        """Clean the logs of the tables of one tenant, unless its purged sessions had no rows in the lake."""
        first = purges[0]
        for kind in LAYOUTS if first.dates else ():
            self._held.require_time()
            self._runtime.lake.clean_log(kind, first.tenant)

    def _mark_purges_done(self, purges: list[PurgeRow]) -> None:
        """Mark purges of a workspace as done, of which its audit log gets one entry."""
        with self._rounds.open_transaction() as db:
            rows = [
                row for row in lock_purges(db, _list_purge_step_sessions(purges)) if row.step == "final_pass"
            ]
            for row in rows:
                self._rounds.report.count(row)
            forgotten_ids = [row.session_id for row in rows if row.cause == "erasure"]
            # Not by the session, which would compare each of its rows with each id.
            db.connection().execute(delete(PurgeRow).where(col(PurgeRow.session_id).in_(forgotten_ids)))
            finished_ids = [row.session_id for row in rows if row.cause != "erasure"]
            update_purges(db, finished_ids, step="done", done_at=clock.now())
            if rows:
                workspace_id = rows[0].workspace_id
                record_audit_entry(
                    db,
                    Origin.system(workspace_id, "retention"),
                    "session.purge",
                    resource_type="workspace",
                    resource_id=workspace_id,
                    details={"sessions": len(rows), "causes": Counter(row.cause for row in rows)},
                )

    def _delete_dead_files(self, purges: list[PurgeRow]) -> set[LakePartition]:
        """Delete files that hold deleted rows; return the partitions with files that may still be written."""
        partitions, unfinished = _list_purge_step_partitions(purges), set[LakePartition]()
        for kind in LAYOUTS if partitions else ():
            self._held.require_time()
            dead = self._runtime.lake.delete_dead_files(
                kind,
                purges[0].tenant,
                partitions=partitions,
                session_ids=_list_purge_step_sessions(purges),
            )
            unfinished |= dead.unfinished
        return unfinished

    def _find_batches(self, purges: list[PurgeRow]) -> ReferringBatches:
        with self._runtime.database.transaction(write=False) as db:
            return ReferringBatches(db, purges)


def _list_purge_step_sessions(purges: Sequence[PurgeRow]) -> list[str]:
    return [purge.session_id for purge in purges]


def _list_purge_step_partitions(purges: Sequence[PurgeRow]) -> list[LakePartition]:
    """Return the partitions of the lake that may hold rows of the sessions."""
    return sorted({LakePartition(purge.workflow, date) for purge in purges for date in purge.dates})


def _group_purges_by_request(purges: list[PurgeRow]) -> dict[datetime, list[str]]:
    """Return the session ids by the time of the request; those of an erasure were requested together."""
    groups: dict[datetime, list[str]] = defaultdict(list)
    for purge in purges:
        groups[purge.requested_at].append(purge.session_id)
    return groups
