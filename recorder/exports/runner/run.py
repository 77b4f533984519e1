"""Run of an export, from claim to manifest; the next run continues a killed one. Spec §3.2, design §3.

The row has the request, the stored plan the files to write, the shard rows the written files, so that every
step can be repeated. The manifest is written last: it makes the files a dataset.
"""

import logging
import time
from collections.abc import Sequence

from recorder import clock
from recorder.datasets.formats import MANIFEST
from recorder.errors import NotFound, RecorderError, Unavailable
from recorder.errors.panics import convert_panics
from recorder.exports.destinations import Destination, open_destination
from recorder.exports.executor import ShardExecutor, open_executor
from recorder.exports.manifest_builder import Lineage
from recorder.exports.planning.lake_stats import LakeStatsMissing
from recorder.exports.planning.plan import Plan, plan_without_sessions
from recorder.exports.planning.selection import DeletedSessions, find_deleted_sessions, plan_selected_sessions
from recorder.exports.planning.sharding import PlannedShard, group_neighbouring_shards, plan_shards
from recorder.exports.requests.validation import compute_export_series
from recorder.exports.runner.export_lease import (
    LEASE_MS,
    ExportCancelled,
    ExportClaim,
    claim_export,
    is_export_over,
    lock_export,
)
from recorder.exports.runner.finalize import (
    end_export_as_failed,
    list_missing_files,
    publish_dataset,
    remove_failed_export_files,
)
from recorder.exports.runner.incremental import (
    Parent,
    add_lineage_deletions,
    find_parent_export,
    lineage_since_parent,
    open_parent_export,
)
from recorder.exports.runner.replayability_wait import wait_for_replayability
from recorder.exports.runner.shard_store import (
    ShardStore,
    delete_other_export_plans,
    make_task_of_stored_plan,
)
from recorder.lazy_property import lazy_property
from recorder.models.export import OPEN_STATUSES, ExportRow
from recorder.models.export_request import SplitRule
from recorder.number_formats import format_count
from recorder.runtime import Runtime
from recorder.storage.leases import LeaseLost

#: Most runs in a row without progress; then the export fails.
MAX_ATTEMPTS = 10


class AttemptsExhausted(RecorderError):
    """Too many runs ended without progress."""

    code = "attempts_exhausted"
    title = "Attempts exhausted"

    def __init__(self, last_error: str | None) -> None:
        cause = f" Last error: {last_error}" if last_error else ""
        super().__init__(f"{MAX_ATTEMPTS} runs in a row made no progress.{cause}")


class FilesMissing(RecorderError):
    """Another writer removes the files while they are written."""

    code = "files_missing"
    title = "Files missing"

    def __init__(self, count: int) -> None:
        files = format_count(count, "file")
        super().__init__(
            f"{files} that this export had written disappeared from the destination. Find out which program "
            "removes them, then create the export again."
        )


class DeletionGoesOn(Unavailable):
    """Sessions are deleted whenever the export is about to be completed; the next run continues."""

    def __init__(self) -> None:
        text = (
            "Sessions of the export are deleted whenever it is about to be completed; the next run continues."
        )
        RecorderError.__init__(self, text)


log = logging.getLogger("recorder.exports")

#: Times that a run checks whether all its files exist, and writes those that do not.
_FILE_CHECKS = 3
#: Times that a run starts to publish and stops because a session was deleted at that moment.
_PUBLICATIONS = 20
#: Pause before a plan is made again: the sweep takes about a second to delete the rows of a session.
_PLAN_PAUSE_S = 1.0


def run_export(
    runtime: Runtime,
    export_id: str,
    *,
    owner: str,
    executor: ShardExecutor | None = None,
    lease_ms: int = LEASE_MS,
) -> ExportRow:
    """Run an export to its end, from the state of the last run; a finished one stays as it is.

    Args:
        runtime: deployment.
        export_id: id of the export.
        owner: name of the run.
        executor: executor of the shard tasks; by default that of the settings.
        lease_ms: time after which another run may take over from one that no longer renews.

    Returns:
        The row, `completed` or `failed`; with `error.code` = `cancelled` if it was cancelled.

    Raises:
        NotFound: if there is no such export.
        ExportBusy, LeaseLost: if another run works on it.
        Unavailable: if a store is away; the export stays `running`, for the next run.
    """
    executor = executor or open_executor(runtime.settings.export_executor)
    with runtime.database.transaction(write=True) as db:
        stored = db.get(ExportRow, export_id)
        if stored is None:
            raise NotFound("export")
        if is_export_over(stored):
            return stored
        claim = claim_export(runtime.database, db, export_id, owner=owner, lease_ms=lease_ms)
        row = lock_export(db, export_id)
        assert row is not None
        row.attempt += 1
        if row.status in OPEN_STATUSES:
            row.status = "running"
            row.started_at = row.started_at or clock.now()
            # Rows of an earlier release have no `split`.
            row.spec = {"split": SplitRule(validation=0, test=0).model_dump()} | row.spec
            row.series_sha256 = compute_export_series(row)
        db.add(row)
    run = _ExportRun(runtime, row, claim, executor)
    with claim.kept_alive():
        return run.finish()


class _ExportRun:
    """The work of one run, under its claim."""

    def __init__(self, runtime: Runtime, row: ExportRow, claim: ExportClaim, executor: ShardExecutor) -> None:
        self._runtime = runtime
        #: Row as it was claimed; changes are read and written through the claim.
        self._export = row
        self._claim = claim
        self._shard_store = ShardStore(claim, runtime.blobs, workspace_id=row.workspace_id)
        self._executor = executor

    def finish(self) -> ExportRow:
        """Do the remaining steps; an error of the export itself ends it as `failed`."""
        row = self._export
        is_stuck = row.attempt - (row.progressed_attempt or 0) > MAX_ATTEMPTS
        if row.status != "running":
            return remove_failed_export_files(self._runtime, self._claim, row, is_last_try=is_stuck)
        try:
            if is_stuck:
                raise AttemptsExhausted(row.last_error)
            with convert_panics():
                return self._complete_export()
        except LeaseLost:
            raise
        except Unavailable as error:
            # The lease expires by itself: a store that does not answer gets a minute before the next run.
            self._store_last_error(error)
            raise
        except RecorderError as error:
            return self._fail_export(error.code, str(error))
        except Exception:
            self._fail_export(
                "internal_error", "Something went wrong on our side; the run's log has the details."
            )
            raise
        except BaseException:
            self._claim.give_back()
            raise

    def _complete_export(self) -> ExportRow:
        """Write the files that are missing, then the manifest, and mark the export as completed."""
        destination = open_destination(self._export, self._runtime.settings)
        # Checked with the request already; since then a claim or a role may have been withdrawn.
        destination.require_owner()
        if self._export.attempt > 1:
            # The last run may have ended after writing it; there must be none until all files are written.
            self._remove_file(MANIFEST, destination)
            # It may also have ended between storing a plan and deleting the one before.
            delete_other_export_plans(self._runtime.blobs, self._export)
        plan, shards = self._load_plan(destination) or self._make_plan(destination)
        plan, shards = self._write_without_deleted_sessions(plan, shards, destination)
        for _ in range(_PUBLICATIONS):
            plan, shards = self._repair_missing_files(plan, shards, destination)
            published = publish_dataset(
                self._runtime, self._export, self._claim, self._shard_store, plan, shards, destination
            )
            if published is not None:
                return published
        raise DeletionGoesOn

    def _write_without_deleted_sessions(
        self, plan: Plan, shards: list[PlannedShard], destination: Destination
    ) -> tuple[Plan, list[PlannedShard]]:
        """Write the shards without deleted sessions; return plan and shards.

        A session that is purged while its shard is written makes that fail: its rows are gone from the lake.
        """
        for _ in range(_FILE_CHECKS):
            plan, shards = self._drop_deleted_sessions(plan, shards, destination)
            try:
                self._write_unfinished_shards(plan, shards, destination)
            except (LeaseLost, ExportCancelled, Unavailable):
                raise
            except Exception:
                if not self._find_deleted_sessions(plan).ids:
                    raise
                log.info("export %s is planned again without purged sessions", self._export.id)
                continue
            return plan, shards
        raise DeletionGoesOn

    def _drop_deleted_sessions(
        self, plan: Plan, shards: list[PlannedShard], destination: Destination
    ) -> tuple[Plan, list[PlannedShard]]:
        """Return plan and shards without deleted sessions; files that hold some are removed."""
        while (gone := self._find_deleted_sessions(plan)).ids:
            plan = plan_without_sessions(plan, gone.ids)
            shards = plan_shards(plan)
            lineage = add_lineage_deletions(self._shard_store.lineage(), gone, self._parent)
            self._replace_plan(plan, shards, lineage, destination, dropped=gone.ids)
        return plan, shards

    def _repair_missing_files(
        self, plan: Plan, shards: list[PlannedShard], destination: Destination
    ) -> tuple[Plan, list[PlannedShard]]:
        """Rewrite files with deleted sessions and missing files; return plan and shards."""
        for _ in range(_FILE_CHECKS):
            while self._find_deleted_sessions(plan).ids:
                # Deleted during this run: the shards that have them are written again.
                plan, shards = self._write_without_deleted_sessions(plan, shards, destination)
            missing = list_missing_files(shards, destination)
            if not missing:
                return plan, shards
            # Written, and removed by another writer before the export was complete.
            self._shard_store.reopen(missing)
            self._write_unfinished_shards(plan, shards, destination)
        raise FilesMissing(len(missing))

    def _remove_file(self, path: str, destination: Destination) -> None:
        """Remove a file, unless another run has taken over the export."""
        self._claim.require()
        destination.remove(path)

    def _load_plan(self, destination: Destination) -> tuple[Plan, list[PlannedShard]] | None:
        """Return the stored plan and its shards; None if this run has to make a plan.

        Another release writes other bytes for the same rows. After an upgrade during the export, the files of
        the old release are removed, so that all files of the dataset are of one release.
        """
        plan = self._shard_store.load_plan()
        if plan is None:
            return None
        shards = plan_shards(plan)
        if self._shard_store.has_other_shards(shards):
            log.info(
                "export %s is continued by another release, which writes all files again", self._export.id
            )
            self._replace_plan(plan, shards, self._shard_store.lineage(), destination)
        return plan, shards

    def _make_plan(self, destination: Destination) -> tuple[Plan, list[PlannedShard]]:
        wait_for_replayability(self._runtime.database, self._claim, self._export)
        plan = self._build_plan()
        parent = find_parent_export(self._runtime, self._export)
        with self._runtime.database.transaction(write=False) as db:
            lineage = lineage_since_parent(db, self._export, plan, parent)
        shards = plan_shards(plan)
        # An earlier release may have stored a plan that this one cannot read, and files of it.
        self._replace_plan(plan, shards, lineage, destination)
        return plan, shards

    def _replace_plan(
        self,
        plan: Plan,
        shards: list[PlannedShard],
        lineage: Lineage,
        destination: Destination,
        *,
        dropped: Sequence[str] | None = None,
    ) -> None:
        """Remove the files that a plan lacks or that it has with other content, then make it the export's.

        In this order, a run that ends in between leaves the rows that name these files: the next run, or the
        removal of a cancelled export's files, finds them.
        """
        for path in self._shard_store.reopen_stale(shards):
            self._remove_file(path, destination)
        self._shard_store.store_plan(plan, shards, lineage, dropped=dropped)

    def _build_plan(self) -> Plan:
        """Choose the sessions; repeat that if rows of chosen ones are deleted during it.

        A purge hides a session before it deletes the rows. The sweep deletes them before it has the session
        sealed again.
        """
        for _ in range(_FILE_CHECKS):
            try:
                return plan_selected_sessions(self._runtime.database, self._runtime.lake, self._export)
            except (LakeStatsMissing, OSError) as error:
                log.info("export %s is planned again: %r", self._export.id, error)
                time.sleep(_PLAN_PAUSE_S)
        return plan_selected_sessions(self._runtime.database, self._runtime.lake, self._export)

    @lazy_property
    def _parent(self) -> Parent | None:
        """Parent export of the plan, if its files still exist."""
        parent_id = self._shard_store.lineage().parent_id
        return None if parent_id is None else open_parent_export(self._runtime, parent_id)

    def _write_unfinished_shards(
        self, plan: Plan, shards: list[PlannedShard], destination: Destination
    ) -> None:
        """Write the shards that are not done, and store the progress of each."""
        paths = self._shard_store.list_unfinished_paths()
        if self._export.attempt > 1:
            for path in paths:
                # A killed run may have written it by another form of the plan.
                self._remove_file(path, destination)
        paths -= self._copy_parent_files([shard for shard in shards if shard.path in paths], destination)
        to_write = [shard for shard in shards if shard.path in paths]
        tasks = [
            make_task_of_stored_plan(self._runtime, self._export, plan, portion)
            for portion in group_neighbouring_shards(to_write)
        ]
        results = self._executor.run(tasks)
        try:
            for written in results:
                self._shard_store.note(written)
        finally:
            # Wait here until workers have ended their tasks.
            getattr(results, "close", lambda: None)()

    def _copy_parent_files(self, shards: list[PlannedShard], destination: Destination) -> set[str]:
        """Copy the files that are identical in the parent export; return their paths."""
        copied = set()
        for shard in shards if shards and self._parent else ():
            if self._parent and (file := self._parent.copy(shard, destination, self._claim)):
                self._shard_store.note(file)
                copied.add(shard.path)
        return copied

    def _find_deleted_sessions(self, plan: Plan) -> DeletedSessions:
        export, sessions = self._export, plan.sessions["session_id"]
        with self._runtime.database.transaction(write=False) as db:
            return find_deleted_sessions(db, export.tenant, plan.spec["workflow"], sessions)

    def _store_last_error(self, error: Unavailable) -> None:
        try:
            with self._claim.transaction() as (_, row):
                row.last_error = str(error)
        except RecorderError:
            log.warning("export %s waits for another run: %s", self._export.id, error)

    def _fail_export(self, code: str, message: str) -> ExportRow:
        log.warning("export %s failed: %s", self._export.id, message)
        with self._claim.transaction_in_any_status() as (db, row):
            if row.status == "running":
                end_export_as_failed(db, row, self._runtime.settings, code, message)
        return remove_failed_export_files(self._runtime, self._claim, row)
