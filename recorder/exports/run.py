"""One run of an export, from claim to manifest; a killed run is carried on by the next. Spec §3.2, design §3.

The row says what was asked for, the stored plan what will be written, the shard rows what has been, so that
every step can be done again. The manifest comes last: its presence says that the dataset is whole.
"""

import logging

from recorder import clock
from recorder.audit.log import Origin, record
from recorder.errors import NotFound, RecorderError, Unavailable
from recorder.exports.allowance import settle
from recorder.exports.card import dataset_card
from recorder.exports.claims import Claim, LeaseLost, claim_export
from recorder.exports.destinations import Destination, open_destination
from recorder.exports.executor import InProcess, ShardExecutor
from recorder.exports.ledger import Ledger
from recorder.exports.manifest import ExportFacts, build_manifest, manifest_bytes
from recorder.exports.names import CARD, MANIFEST
from recorder.exports.plan import Plan, PlannedShard, plan_shards, read_together, without_sessions
from recorder.exports.requests import create_export
from recorder.exports.selection import find_gone, read_plan
from recorder.exports.shards import ShardTask
from recorder.exports.wire import emit
from recorder.models.export import ExportCreate, ExportRow
from recorder.runtime import Runtime
from recorder.storage.leases import release_lease

log = logging.getLogger("recorder.exports")

#: So many runs may take an export up; then it fails.
MAX_ATTEMPTS = 5
_FINISHED = ("completed", "failed")


class AttemptsExhausted(RecorderError):
    """No run brought the export to an end."""

    code = "attempts_exhausted"
    title = "Attempts exhausted"

    def __init__(self) -> None:
        super().__init__(f"{MAX_ATTEMPTS} runs took this export up and none finished it; export again.")


def _at_dagster(workspace_id: str) -> Origin:
    """Whoever works at Dagster's pages, which know no names."""
    return Origin(workspace_id, "operator", "dagster")


def queue_export(runtime: Runtime, workspace_id: str, mode: str, body: ExportCreate, *, owner: str) -> str:
    """Make an export for a run that begins at once; no other run can take it up in between.

    Returns:
        Its id, for `run_export` with the same owner.
    """
    with runtime.database.transaction(write=True) as db:
        origin = _at_dagster(workspace_id)
        row = create_export(db, runtime.settings, workspace_id, mode, body, origin=origin)
        claim_export(runtime.database, db, row.id, owner=owner)
    return row.id


def cancel_export(runtime: Runtime, export_id: str, *, owner: str) -> None:
    """End an export whose run was cancelled; a finished one stays as it is.

    Raises:
        ExportBusy: if a run works on it.
    """
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(ExportRow, export_id)
        if row.status in _FINISHED:
            return
        claim = claim_export(runtime.database, db, export_id, owner=owner)
        origin = _at_dagster(row.workspace_id)
        record(db, origin, "export.cancel", resource_type="export", resource_id=export_id)
    _fail(runtime, claim, "cancelled", "The run of this export was cancelled.")


def run_export(
    runtime: Runtime, export_id: str, *, owner: str, executor: ShardExecutor | None = None
) -> ExportRow:
    """Bring an export to its end, from wherever the last run left it; a finished one stays as it is.

    Returns:
        The row, `completed` or `failed`.

    Raises:
        NotFound: if there is no such export.
        ExportBusy, LeaseLost: if another run works on it.
        Unavailable: if a store is away; the export stays `running`, for the next run.
    """
    with runtime.database.transaction(write=True) as db:
        row = db.get(ExportRow, export_id)
        if row is None:
            raise NotFound("export")
        if row.status in _FINISHED:
            return row
        claim = claim_export(runtime.database, db, export_id, owner=owner)
        row.status, row.attempt = "running", row.attempt + 1
        row.started_at = row.started_at or clock.now()
        db.add(row)
    run = _Run(runtime, row, claim, executor or InProcess())
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
        try:
            if self._export.attempt > MAX_ATTEMPTS:
                raise AttemptsExhausted
            return self._complete()
        except (LeaseLost, Unavailable):
            # The lease is left to run out: a store that is away gets a minute before the next run.
            raise
        except RecorderError as error:
            return _fail(self._runtime, self._claim, error.code, str(error))
        except Exception:
            text = "Something went wrong on our side; the run's log tells more."
            _fail(self._runtime, self._claim, "internal_error", text)
            raise
        except BaseException:
            self._claim.give_back()
            raise

    def _complete(self) -> ExportRow:
        destination = open_destination(self._export, self._runtime.settings)
        plan = self._ledger.load_plan() or self._new_plan()
        shards = plan_shards(plan)
        self._write(plan, shards, destination)
        while gone := self._find_gone(plan):
            # Deleted while this ran: the shards that held them are written anew.
            plan = without_sessions(plan, gone)
            shards = plan_shards(plan)
            for path in self._ledger.store_plan(plan, shards):
                destination.remove(path)
            self._write(plan, shards, destination)
        return self._publish(plan, shards, destination)

    def _new_plan(self) -> Plan:
        plan = read_plan(self._runtime.database, self._runtime.lake, self._export)
        self._ledger.store_plan(plan, plan_shards(plan))
        return plan

    def _write(self, plan: Plan, shards: list[PlannedShard], destination: Destination) -> None:
        """Write the shards that are not done, noting each as it is."""
        paths = self._ledger.open_paths()
        for path in paths:
            # A killed run may have written it after another form of the plan.
            destination.remove(path)
        to_write = [shard for shard in shards if shard.path in paths]
        tasks = [self._task(portion, plan, destination) for portion in read_together(to_write)]
        for written in self._executor.run(tasks):
            self._ledger.note(written)

    def _task(self, shards: list[PlannedShard], plan: Plan, destination: Destination) -> ShardTask:
        return ShardTask(
            workspace_id=self._export.workspace_id,
            mode=self._export.mode,
            shards=shards,
            version=plan.versions[shards[0].kind],
            sampling=plan.sampling,
            lake_url=self._runtime.lake.url,
            blob_url=self._runtime.blobs.url,
            destination_url=destination.url,
        )

    def _find_gone(self, plan: Plan) -> list[str]:
        with self._runtime.database.transaction(write=False) as db:
            return find_gone(db, self._export.workspace_id, self._export.mode, plan)

    def _publish(self, plan: Plan, shards: list[PlannedShard], destination: Destination) -> ExportRow:
        """Write card and manifest, then say that the export is completed."""
        written = self._ledger.written()
        facts = ExportFacts(
            export_id=self._export.id,
            workspace_id=self._export.workspace_id,
            created_at=self._export.created_at,
            tag=self._export.tag,
        )
        manifest = build_manifest(facts, plan, [(shard, written[shard.path]) for shard in shards])
        with destination.create(CARD, replace=True) as file:
            file.write(dataset_card(manifest).encode())
        with destination.create(MANIFEST, replace=True) as file:
            file.write(manifest_bytes(manifest))
        destination.finish()
        totals = manifest["totals"]
        with self._claim.transaction() as (db, row):
            row.status, row.completed_at = "completed", clock.now()
            row.rows, row.frames, row.actions = totals["rows"], totals["frames"], totals["actions"]
            row.shards = totals["shards"]
            row.shard_size_bytes = max((shard.size_bytes for shard in written.values()), default=0)
            row.row_set_sha256, row.manifest_sha256 = manifest["row_set_sha256"], file.sha256
            settle(db, row, exported=totals["rows"])
            emit(db, row, self._runtime.settings, "export.completed")
            release_lease(db, self._claim.lease)
        return row


def _fail(runtime: Runtime, claim: Claim, code: str, message: str) -> ExportRow:
    log.warning("export %s failed: %s", claim.export_id, message)
    with claim.transaction() as (db, row):
        row.status, row.completed_at = "failed", clock.now()
        row.error = {"code": code, "message": message}
        settle(db, row, exported=0)
        emit(db, row, runtime.settings, "export.failed")
        release_lease(db, claim.lease)
    return row
