"""The run that writes small exports, and its loop: claim, write side by side, report one after the other.

A Dagster run takes 8 to 16 seconds from its request to its first line of work. This one stays, so that a
small export is claimed within half a second. docs/decisions/0037-small-exports.md.
"""

import logging
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from pipelines.dagster_runs import QUEUE_TAG, is_dagster_run_cancelled
from pipelines.dataset_checks import check_dataset_against_lake, check_dataset_files
from pipelines.dataset_metadata import LoggedProgress, describe_completed_export
from pipelines.dataset_partitions import register_dataset_partition
from pipelines.resources import RecorderResource, make_recorder_resource
from pipelines.sealing_drain import defer_interrupts
from recorder.errors import RecorderError, Unavailable
from recorder.errors.panics import convert_panics
from recorder.exports.executor import InProcess
from recorder.exports.runner.export_lease import ExportClaim
from recorder.exports.runner.run import run_export
from recorder.exports.runner.small_exports import (
    SLOTS,
    WRITER_LEASE_MS,
    claim_next_small_export,
    find_small_export_writer,
    is_small_export,
    pass_on_small_export_writer_lease,
    release_small_export_claim,
    take_small_export_writer_lease,
)
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from recorder.storage.leases import HeldLease

log = logging.getLogger("recorder.exports")

SmallExportRunEnding = Literal["time is up", "interrupted", "lease lost"]

_POLL_S = 0.5
_RENEW_EVERY_S = WRITER_LEASE_MS / 1000 / 5
#: What it began before is finished, at most in this time.
_LAST_EXPORTS_S = 60.0
#: After an interrupt the exports at work get so long; the service gives its children ten seconds.
_GRACE_S = 5.0
_FIRST_STORE_PAUSE_S, _LONGEST_STORE_PAUSE_S = 1.0, 15.0


class SmallExportsConfig(dg.Config):
    """Duration of a run that writes small exports."""

    max_seconds: float = Field(
        default=6 * 3600, gt=0, le=86_400, description="Let another run take over after so many seconds."
    )
    max_exports: int = Field(
        default=2000, ge=1, description="Let another run take over after so many exports."
    )
    handover_seconds: float = Field(
        default=60, gt=0, le=600, description="Wait at most so long for the run that takes over."
    )


@dataclass(frozen=True)
class FinishedSmallExport:
    """An export that ended, with what Dagster's pages show of it."""

    row: ExportRow
    metadata: dict[str, Any] = field(default_factory=dict)
    checks: tuple[dg.AssetCheckResult, ...] = ()


class SmallExportLoop:
    """Loop of one run: threads write exports, the caller's thread reports them."""

    def __init__(
        self, runtime: Runtime, *, owner: str, run_log: logging.Logger, lease_ms: int, handover_s: float
    ) -> None:
        """Write exports for a run.

        Args:
            runtime: deployment.
            owner: id of the run.
            run_log: log that the run's page shows.
            lease_ms: time after which a silent run loses an export.
            handover_s: longest time for which a run whose time is up continues until another one follows.
        """
        self._runtime = runtime
        self._owner = owner
        self._run_log = run_log
        self._lease_ms = lease_ms
        self._handover_s = handover_s
        self._writer_lease: HeldLease | None = None
        self._at_work: dict[str, ExportRow] = {}
        #: Id of an export that left its thread, with what became of it; None if there is nothing to report.
        self._ended: queue.SimpleQueue[tuple[str, FinishedSmallExport | None]] = queue.SimpleQueue()
        #: Number of the last claim of each workspace.
        self._served: dict[str, float] = {}
        self._claims = 0
        #: matplotlib keeps caches that two threads must not fill at once.
        self._drawing = threading.Lock()
        self._stopping = threading.Event()
        #: Why the loop ended.
        self.ending: SmallExportRunEnding = "time is up"

    def take_lease(self) -> bool:
        """Take the writer lease; return False while another run holds it."""
        with self._runtime.database.transaction(write=True) as db:
            self._writer_lease = take_small_export_writer_lease(db, self._owner)
        return self._writer_lease is not None

    def stop(self) -> None:
        """End once the exports at work are written."""
        self._stopping.set()

    def write_exports(self, *, max_seconds: float, max_exports: int) -> Iterator[FinishedSmallExport]:
        """Write exports as they are queued, and yield each that ended."""
        began = time.monotonic()
        handed_over: float | None = None
        searched = renewed = 0.0
        pause_s = _FIRST_STORE_PAUSE_S
        while not self._stopping.is_set():
            now = time.monotonic()
            is_over = now - began >= max_seconds or self._claims >= max_exports
            try:
                if handed_over is None and is_over:
                    self._release_writer_lease(is_leaving=True)
                    handed_over = now
                if handed_over is not None and self._has_successor(handed_over):
                    break
                if handed_over is None and now - renewed >= _RENEW_EVERY_S:
                    if not self._renew():
                        self.ending = "lease lost"
                        break
                    renewed = now
                if len(self._at_work) < SLOTS and now - searched >= _POLL_S:
                    searched = now
                    while len(self._at_work) < SLOTS and self._claim():
                        pass
                pause_s = _FIRST_STORE_PAUSE_S
            except Unavailable as error:
                log.warning("%s No export is claimed for %.0f s.", error, pause_s)
                self._stopping.wait(pause_s)
                pause_s = min(_LONGEST_STORE_PAUSE_S, 2 * pause_s)
            for finished in self._take_ended(_POLL_S):
                yield finished
                # A slot is free: the next export need not wait for the next poll.
                searched = 0.0
        if self._stopping.is_set():
            self.ending = "interrupted"
        until = time.monotonic() + (_GRACE_S if self._stopping.is_set() else _LAST_EXPORTS_S)
        while self._at_work and time.monotonic() < until:
            yield from self._take_ended(_POLL_S)
        with suppress(Unavailable):
            self._release_writer_lease()

    def _claim(self) -> bool:
        """Claim the next small export and start a thread that writes it; return False if none waits."""
        claimed = claim_next_small_export(
            self._runtime.database,
            self._owner,
            list(self._at_work.values()),
            self._served,
            lease_ms=self._lease_ms,
        )
        if claimed is None:
            return False
        row, claim = claimed
        self._claims += 1
        self._served[row.workspace_id] = self._claims
        self._at_work[row.id] = row
        # A daemon: a store that hangs must not keep the process from ending.
        threading.Thread(target=self._work, args=(row, claim), name=row.id, daemon=True).start()
        return True

    def _work(self, row: ExportRow, claim: ExportClaim) -> None:
        """Write a claimed export in a thread, log its failure, and report that it ended."""
        finished = None
        try:
            finished = self._write(row, claim)
        except RecorderError as error:
            # Lost, or a store is away: the export waits for a run of its own.
            self._run_log.warning(f"{row.id}: {error}")
        except Exception:
            log.exception("export %s", row.id)
        finally:
            self._ended.put((row.id, finished))

    def _write(self, row: ExportRow, claim: ExportClaim) -> FinishedSmallExport | None:
        """Write the dataset of a claimed export; leave a large one to a run of its own, and return None."""
        if not is_small_export(self._runtime.database, row):
            release_small_export_claim(claim)
            self._run_log.info(f"{row.id}: large; it gets a run of its own.")
            return None

        def say(text: str) -> None:
            self._run_log.info(f"{row.id}: {text}")

        say(f"dataset {row.dataset}, request {row.request_id or 'none'}")
        runtime = self._runtime
        ended = run_export(
            runtime,
            row.id,
            owner=self._owner,
            executor=LoggedProgress(InProcess(), say),
            lease_ms=self._lease_ms,
        )
        if ended.status == "failed":
            return FinishedSmallExport(ended)
        checks = self._check_files(ended)
        with self._drawing:
            metadata = describe_completed_export(ended, runtime.settings)
        return FinishedSmallExport(ended, metadata, checks)

    def _check_files(self, row: ExportRow) -> tuple[dg.AssetCheckResult, ...]:
        """Return the checks of a completed export; none if they fail, which must not hide the export."""
        try:
            with convert_panics():
                return (
                    check_dataset_files(row, self._runtime.settings),
                    check_dataset_against_lake(self._runtime, row),
                )
        except Exception:
            log.exception("export %s is completed, but cannot be checked", row.id)
            return ()

    def _take_ended(self, seconds: float) -> Iterator[FinishedSmallExport]:
        """Wait for an export to end, and yield those that have."""
        timeout: float | None = seconds
        while True:
            try:
                export_id, finished = (
                    self._ended.get(timeout=timeout) if timeout else self._ended.get_nowait()
                )
            except queue.Empty:
                return
            del self._at_work[export_id]
            timeout = None
            if finished is not None:
                yield finished

    def _renew(self) -> bool:
        """Renew the lease by which this run writes small exports; return False if it was lost."""
        assert self._writer_lease is not None
        with self._runtime.database.transaction(write=True) as db:
            return self._writer_lease.renew(db, only_if_held=True)

    def _release_writer_lease(self, *, is_leaving: bool = False) -> None:
        if self._writer_lease is None:
            return
        with self._runtime.database.transaction(write=True) as db:
            if is_leaving:
                pass_on_small_export_writer_lease(db, self._writer_lease)
            else:
                self._writer_lease.release(db)
        self._writer_lease = None

    def _has_successor(self, since: float) -> bool:
        """Return whether another run holds the writer lease, or took too long to take it."""
        if time.monotonic() - since >= self._handover_s:
            return True
        with self._runtime.database.transaction(write=False) as db:
            return find_small_export_writer(db) is not None


@dg.op(
    out=dg.Out(dg.Nothing, is_required=False),
    description="Claims small exports as they are queued, writes them, and reports each as its dataset.",
)
def small_exports(
    context: dg.OpExecutionContext, config: SmallExportsConfig, recorder: RecorderResource
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation]:
    """Write small exports until the run's time is up."""
    loop = SmallExportLoop(
        recorder.runtime,
        owner=context.run.run_id,
        run_log=context.log,
        handover_s=config.handover_seconds,
        lease_ms=round(recorder.export_lease_s * 1000),
    )
    if not loop.take_lease():
        context.log.info("Another run writes small exports; nothing to do.")
        return
    exports = 0
    results = loop.write_exports(max_seconds=config.max_seconds, max_exports=config.max_exports)
    while True:
        # Dagster installs its own handlers each time it resumes this generator: ours do not outlast a yield.
        with defer_interrupts(loop.stop):
            finished = next(results, None)
        if finished is None:
            break
        register_dataset_partition(context.instance, finished.row.dataset)
        yield from report_small_export(finished)
        exports += 1
    context.log.info(f"Ended ({loop.ending}) after {exports} exports.")
    if loop.ending == "interrupted" and is_dagster_run_cancelled(context.instance, context.run.run_id):
        # Dagster's own handler now ends the run as cancelled.
        signal.raise_signal(signal.SIGINT)


def report_small_export(
    finished: FinishedSmallExport,
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation]:
    """Yield what Dagster's pages show of an export: a version of its dataset, or why there is none."""
    row = finished.row
    if row.status != "completed":
        error = row.error or {}
        yield dg.AssetObservation(
            "datasets",
            partition=row.dataset,
            description=f"The export failed: {error.get('message', 'see the log')}",
            metadata={"export_id": row.id, "error_code": error.get("code", "internal_error")},
        )
        return
    yield dg.AssetMaterialization(
        "datasets",
        partition=row.dataset,
        metadata=finished.metadata,
        tags={"dagster/data_version": row.row_set_sha256 or ""},
    )
    for check in finished.checks:
        assert check.check_name is not None
        yield dg.AssetCheckEvaluation(
            check_name=check.check_name,
            asset_key=dg.AssetKey("datasets"),
            passed=check.passed,
            severity=check.severity,
            description=check.description,
            metadata=check.metadata,
        )


@dg.job(
    description="Writes small exports as they are queued; one run stays at work.",
    executor_def=dg.in_process_executor,
    # Bound here: resources that Dagster binds later make it rebuild the sensor, with a warning of its own.
    resource_defs={"recorder": make_recorder_resource()},
    tags={QUEUE_TAG: "small-exports"},
)
def write_small_exports() -> None:
    """Run the op that writes small exports until its time is up."""
    small_exports()
