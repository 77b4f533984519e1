"""Why a run of an export gives up, for good or to the next run. Spec §3.2."""

import logging
from functools import cached_property

from recorder import clock
from recorder.datasets.formats import MANIFEST
from recorder.errors import NotFound, RecorderError, Unavailable
from recorder.exports.destinations import Destination, open_destination, target_of
from recorder.exports.executor import ShardExecutor, open_executor
from recorder.exports.planning.plan import Plan, without_sessions
from recorder.exports.planning.selection import Gone, find_gone, read_plan
from recorder.exports.planning.sharding import PlannedShard, plan_shards, read_together
from recorder.exports.requests.validation import series_of
from recorder.exports.runner.finalize import end_as_failed, missing_files, publish, take_files_away
from recorder.exports.runner.incremental import Parent, after_loss, find_parent, lineage_of, open_parent
from recorder.exports.runner.lease import LEASE_MS, Claim, claim_export, is_over, lock_export
from recorder.exports.runner.shard_store import Ledger
from recorder.exports.writers import ShardTask
from recorder.models.export import ExportRow
from recorder.models.export_request import SplitRule
from recorder.runtime import Runtime
from recorder.storage.leases import LeaseLost

#: So many runs in a row may end without having brought an export on; then it fails.
MAX_ATTEMPTS = 10


class AttemptsExhausted(RecorderError):
    """Run after run did not bring the export on."""

    code = "attempts_exhausted"
    title = "Attempts exhausted"

    def __init__(self, last_error: str | None) -> None:
        cause = f" The last one said: {last_error}" if last_error else ""
        super().__init__(f"{MAX_ATTEMPTS} runs in a row brought this export no further.{cause}")


class FilesMissing(RecorderError):
    """Somebody takes the files away while they are written."""

    code = "files_missing"
    title = "Files missing"

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} file(s) were written to the destination and are not there any more.")


class DeletionGoesOn(Unavailable):
    """Sessions are deleted whenever the export is about to be completed; the next run goes on."""

    def __init__(self) -> None:
        text = (
            "Sessions of the export are deleted whenever it is about to be completed; the next run goes on."
        )
        RecorderError.__init__(self, text)


log = logging.getLogger("recorder.exports")

#: So often a run looks whether all that it wrote is there, writing what is not.
_LOOKS = 3
#: So often a run begins to publish, and leaves it because a session was deleted at that moment.
_PUBLICATIONS = 20


def run_export(
    runtime: Runtime,
    export_id: str,
    *,
    owner: str,
    executor: ShardExecutor | None = None,
    lease_ms: int = LEASE_MS,
) -> ExportRow:
    """Bring an export to its end, from wherever the last run left it; a finished one stays as it is.

    Args:
        lease_ms: after this long without a sign of life another run may take over.

    Returns:
        The row, `completed` or `failed`; with `error.code` = `cancelled` where it was cancelled meanwhile.

    Raises:
        NotFound: if there is no such export.
        ExportBusy, LeaseLost: if another run works on it.
        Unavailable: if a store is away; the export stays `running`, for the next run.
    """
    executor = executor or open_executor(runtime.settings.export_executor)
    with runtime.database.transaction(write=True) as db:
        found = db.get(ExportRow, export_id)
        if found is None:
            raise NotFound("export")
        if is_over(found):
            return found
        claim = claim_export(runtime.database, db, export_id, owner=owner, lease_ms=lease_ms)
        row = lock_export(db, export_id)
        assert row is not None
        row.attempt += 1
        if row.status in ("queued", "running"):
            row.status = "running"
            row.started_at = row.started_at or clock.now()
            # The release before knew no parts.
            row.spec = {"split": SplitRule(validation=0, test=0).model_dump()} | row.spec
            row.series_sha256 = series_of(row)
        db.add(row)
    run = _Run(runtime, row, claim, executor)
    with claim.kept_alive():
        return run.to_the_end()


class _Run:
    """The work of one run, under its claim."""

    def __init__(self, runtime: Runtime, row: ExportRow, claim: Claim, executor: ShardExecutor) -> None:
        self._runtime = runtime
        #: As it was claimed; what changes is read and written through the claim.
        self._export = row
        self._claim = claim
        self._ledger = Ledger(claim, runtime.blobs, workspace_id=row.workspace_id)
        self._executor = executor

    def to_the_end(self) -> ExportRow:
        """Do what is left; an error of the export itself ends it as `failed`."""
        row = self._export
        is_stuck = row.attempt - (row.progressed_attempt or 0) > MAX_ATTEMPTS
        if row.status != "running":
            return take_files_away(self._runtime, self._claim, row, is_last_try=is_stuck)
        try:
            if is_stuck:
                raise AttemptsExhausted(row.last_error)
            return self._complete()
        except LeaseLost:
            raise
        except Unavailable as error:
            # The lease is left to run out: a store that is away gets a minute before the next run.
            self._note_trouble(error)
            raise
        except RecorderError as error:
            return self._fail(error.code, str(error))
        except Exception:
            self._fail("internal_error", "Something went wrong on our side; the run's log tells more.")
            raise
        except BaseException:
            self._claim.give_back()
            raise

    def _complete(self) -> ExportRow:
        destination = open_destination(self._export, self._runtime.settings)
        # Asked at the request already; since then a claim or a role may have been taken back.
        destination.require_owner()
        if self._export.attempt > 1:
            # The run before may have been cut off behind it; until all is done there must be none.
            self._remove(MANIFEST, destination)
        plan, shards = self._stored_plan() or self._new_plan(destination)
        self._write(plan, shards, destination)
        for _ in range(_PUBLICATIONS):
            plan, shards = self._make_whole(plan, shards, destination)
            published = publish(
                self._runtime, self._export, self._claim, self._ledger, plan, shards, destination
            )
            if published is not None:
                return published
        raise DeletionGoesOn

    def _make_whole(
        self, plan: Plan, shards: list[PlannedShard], destination: Destination
    ) -> tuple[Plan, list[PlannedShard]]:
        """See that nothing deleted is in the files and that all of them are there; gives plan and shards."""
        for _ in range(_LOOKS):
            while (gone := self._find_gone(plan)).ids:
                # Deleted while this ran: the shards that held them are written anew.
                plan = without_sessions(plan, gone.ids)
                shards = plan_shards(plan)
                lineage = after_loss(self._ledger.lineage(), gone, self._parent)
                for path in self._ledger.store_plan(plan, shards, lineage):
                    self._remove(path, destination)
                self._write(plan, shards, destination)
            missing = missing_files(shards, destination)
            if not missing:
                return plan, shards
            # Written, and taken away by others before the whole was there.
            self._ledger.reopen(missing)
            self._write(plan, shards, destination)
        raise FilesMissing(len(missing))

    def _remove(self, path: str, destination: Destination) -> None:
        """Take a file away, unless it is another run's by now."""
        self._claim.require()
        destination.remove(path)

    def _stored_plan(self) -> tuple[Plan, list[PlannedShard]] | None:
        plan = self._ledger.load_plan()
        return None if plan is None else (plan, plan_shards(plan))

    def _new_plan(self, destination: Destination) -> tuple[Plan, list[PlannedShard]]:
        plan = read_plan(self._runtime.database, self._runtime.lake, self._export)
        parent = find_parent(self._runtime, self._export)
        with self._runtime.database.transaction(write=False) as db:
            lineage = lineage_of(db, self._export, plan, parent)
        shards = plan_shards(plan)
        for path in self._ledger.store_plan(plan, shards, lineage):
            self._remove(path, destination)  # of a plan of the release before
        return plan, shards

    @cached_property
    def _parent(self) -> Parent | None:
        """The export that was found when the plan was made, if its files are still there."""
        parent_id = self._ledger.lineage().parent_id
        return None if parent_id is None else open_parent(self._runtime, parent_id)

    def _write(self, plan: Plan, shards: list[PlannedShard], destination: Destination) -> None:
        """Write the shards that are not done, noting each as it is."""
        paths = self._ledger.open_paths()
        if self._export.attempt > 1:
            for path in paths:
                # A killed run may have written it after another form of the plan.
                self._remove(path, destination)
        paths -= self._take_over([shard for shard in shards if shard.path in paths], destination)
        to_write = [shard for shard in shards if shard.path in paths]
        tasks = [self._task(portion, plan) for portion in read_together(to_write)]
        results = self._executor.run(tasks)
        try:
            for written in results:
                self._ledger.note(written)
        finally:
            # What was begun elsewhere comes to its end here, not behind our back.
            getattr(results, "close", lambda: None)()

    def _take_over(self, shards: list[PlannedShard], destination: Destination) -> set[str]:
        """Copy the files that the export before has alike; gives their paths."""
        taken = set()
        for shard in shards if shards and self._parent else ():
            if self._parent and (file := self._parent.copy(shard, destination, self._claim)):
                self._ledger.note(file)
                taken.add(shard.path)
        return taken

    def _task(self, shards: list[PlannedShard], plan: Plan) -> ShardTask:
        return ShardTask(
            workspace_id=self._export.workspace_id,
            mode=self._export.mode,
            shards=shards,
            format=plan.format,
            versions=plan.versions,
            sampling=plan.sampling,
            lake_url=self._runtime.lake.url,
            blob_url=self._runtime.blobs.url,
            target=target_of(self._export, self._runtime.settings),
        )

    def _find_gone(self, plan: Plan) -> Gone:
        export, sessions = self._export, plan.sessions["session_id"]
        with self._runtime.database.transaction(write=False) as db:
            return find_gone(db, export.tenant, plan.spec["workflow"], sessions)

    def _note_trouble(self, error: Unavailable) -> None:
        try:
            with self._claim.transaction() as (_, row):
                row.last_error = str(error)
        except RecorderError:
            log.warning("export %s waits for another run: %s", self._export.id, error)

    def _fail(self, code: str, message: str) -> ExportRow:
        log.warning("export %s failed: %s", self._export.id, message)
        with self._claim.ending_transaction() as (db, row):
            if row.status == "running":
                end_as_failed(db, row, self._runtime.settings, code, message)
        return take_files_away(self._runtime, self._claim, row)
