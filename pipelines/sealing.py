"""Sealing in Dagster: the assets, the drain job and the sensor that starts it. Spec §4.1, design §3.

Dagster evaluates sensors every five seconds and needs two more to start a run, so a run per session cannot
seal within a second. One run stays and drains what stops (a sealing drain run); it ends after minutes of
idleness.
"""

import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import dagster as dg
from pydantic import Field

from pipelines.dagster_runs import (
    QUEUE_TAG,
    dagster_instance_of,
    is_dagster_run_cancelled,
    request_dagster_run,
)
from pipelines.memory_metadata import read_graph_metadata
from pipelines.resources import RecorderResource
from pipelines.sealing_drain import SealingDrainLoop, defer_interrupts
from pipelines.sealing_report import describe_sealing_progress, describe_sealing_run
from pipelines.workflow_partitions import partition_key, register_workflow_partitions
from recorder.runtime import Runtime
from recorder.sealing import (
    SealedBatch,
    compute_longest_wait_s,
    has_sealing_work,
    list_sealing_runs,
    open_sealer,
)
from recorder.sealing.arrivals import check_table_arrivals
from recorder.storage.database import Database
from recorder.storage.lake_schemas import LAYOUTS, LakeKind
from recorder.tenant import GraphScope

log = logging.getLogger("recorder.sealing")

_GROUP = "sealing"
# A tick watches this long before it ends without work. The daemon begins one every five seconds, so a session
# that stops while nothing runs waits for no tick; a tick costs more than the looks within it.
_WATCH_S = 8.5
_WATCH_POLL_S = 0.5
# A run at work seals what stops; another one is only needed where it falls behind.
_WATCH_POLL_BUSY_S = 2.0
_LONGEST_PAUSE_S = 30.0
_GRAPHS = "memory_graphs"
#: Sessions of a graph up to which a sealing drain run loads it for its picture; rebuilds draw larger ones.
_DRAWN_SESSIONS = 20_000
#: Incomplete tables that the first line of a failed check describes.
_DESCRIBED_TABLES = 3


class SealingDrainConfig(dg.Config):
    """Duration of a sealing drain run, and how often it draws a graph."""

    idle_seconds: float = Field(
        default=300, ge=0, description="End after so many seconds in which no session stopped."
    )
    max_seconds: float = Field(
        default=3600,
        gt=0,
        le=86_400,
        description="End after so many seconds in any case; a fresh run takes over.",
    )
    picture_seconds: float = Field(
        default=60, ge=0, description="Show a new picture of a changed graph after so many seconds."
    )


def _describe_sealing_asset_columns(kind: LakeKind) -> dict[str, dg.TableSchema]:
    columns = [
        dg.TableColumn(
            field.name, str(field.type), constraints=dg.TableColumnConstraints(nullable=field.nullable)
        )
        for field in LAYOUTS[kind].schema
    ]
    return {"dagster/column_schema": dg.TableSchema(columns)}


_SPECS = [
    dg.AssetSpec(
        "sealed_sessions",
        group_name=_GROUP,
        kinds={"deltalake"},
        skippable=True,
        metadata=_describe_sealing_asset_columns("sessions"),
        description=(
            "One row per sealed session. One table per workspace and mode, by workflow and date of sealing."
        ),
    ),
    dg.AssetSpec(
        "session_events",
        group_name=_GROUP,
        kinds={"deltalake"},
        skippable=True,
        metadata=_describe_sealing_asset_columns("events"),
        description=(
            "One row per event of a sealed session, in (t_ms, event_id) order. "
            "One table per workspace and mode, by workflow and date of sealing."
        ),
    ),
    dg.AssetSpec(
        "session_frames",
        group_name=_GROUP,
        kinds={"deltalake"},
        skippable=True,
        metadata=_describe_sealing_asset_columns("frames"),
        description=(
            "One row per screen frame of a sealed session (the picture itself is a blob), in "
            "(t_ms, frame_id) order. One table per workspace and mode, by workflow and date of sealing."
        ),
    ),
    dg.AssetSpec(
        _GRAPHS,
        group_name=_GROUP,
        kinds={"sql"},
        skippable=True,
        deps=["session_events", "session_frames"],
        description=(
            "One graph per workspace, mode and workflow: nodes, the edges between them and the paths that "
            "sessions took. Versioned; readers pin a version."
        ),
    ),
]


@dg.multi_asset(specs=_SPECS, name="seal")
def sealing(
    context: dg.AssetExecutionContext, config: SealingDrainConfig, recorder: RecorderResource
) -> Iterator[dg.MaterializeResult[None]]:
    """Seal stopped sessions, and those that stop while the run lasts."""
    sealed: list[SealedBatch] = []
    written: list[Future[None]] = []
    with open_sealer(recorder.runtime, context.run.run_id) as sealer:
        if sealer is None:
            context.log.info("Enough runs are sealing; nothing to do.")
            return
        drain = SealingDrainLoop(sealer, idle_seconds=config.idle_seconds, max_seconds=config.max_seconds)
        # Reports are written beside the sealing: each takes a dozen ms that the next session would wait.
        with defer_interrupts(drain.stop), ThreadPoolExecutor(1) as reporter:
            reports = SealingAssetLog(context, recorder.runtime, picture_every_s=config.picture_seconds)
            for batches in drain.seal_and_report():
                sealed.extend(batches)
                written.append(reporter.submit(reports.log_batches, batches))
    for report in written:
        report.result()
    context.log.info(
        f"Ended ({drain.ending}) with {sum(batch.sessions for batch in sealed)} sessions sealed."
    )
    if drain.ending == "interrupted" and is_dagster_run_cancelled(context.instance, context.run.run_id):
        # Dagster's own handler now ends the run as cancelled.
        signal.raise_signal(signal.SIGINT)
    for asset, metadata in describe_sealing_run(sealed, drain.ending):
        picture = reports.describe_last_graph(sealed) if asset == _GRAPHS else {}
        yield dg.MaterializeResult(asset_key=asset, metadata={**picture, **metadata})


class SealingAssetLog:
    """Reports of a sealing drain run in Dagster's event log, used from one thread."""

    def __init__(
        self, context: dg.AssetExecutionContext, runtime: Runtime, *, picture_every_s: float
    ) -> None:
        """Log nothing yet."""
        self._context = context
        self._picture_every_s = picture_every_s
        self._runtime = runtime
        self._registered: set[GraphScope] = set()
        #: Graphs whose partitions are not registered yet.
        self._new: set[GraphScope] = set()
        self._drawn_at = -picture_every_s
        #: Batches since the last picture.
        self._undrawn: list[SealedBatch] = []

    def log_batches(self, batches: list[SealedBatch]) -> None:
        """Log what some batches added to each asset, and register the partitions of new workflows.

        Once in `picture_every_s` the graphs' asset is materialized with a graph's picture. Other reports
        are observations, so that the page of the asset always shows a picture. A report without batches
        draws the last graph that was only observed.

        An error is logged and does not fail the run: the sessions are sealed.
        """
        try:
            self._register_partitions(batches)
            self._log_assets(batches)
        except Exception:
            log.exception("%d batches are sealed, but cannot be reported", len(batches))

    def _register_partitions(self, batches: list[SealedBatch]) -> None:
        """Add the workflows of sealed batches to Dagster's dynamic partitions, where they are new."""
        self._new |= {scope for batch in batches for scope in batch.scopes} - self._registered
        register_workflow_partitions(self._context.instance, sorted(self._new, key=partition_key))
        self._registered |= self._new
        self._new.clear()

    def _log_assets(self, batches: list[SealedBatch]) -> None:
        """Log materializations of the sealed assets, with a picture of the graphs at times."""
        self._undrawn.extend(batch for batch in batches if batch.scopes)
        is_due = time.monotonic() - self._drawn_at >= self._picture_every_s
        for asset, metadata in describe_sealing_progress(batches):
            if asset != _GRAPHS:
                self._context.log_event(dg.AssetMaterialization(asset, metadata=metadata))
            elif not is_due:
                self._context.log_event(dg.AssetObservation(asset, metadata=metadata))
        if is_due and self._undrawn:
            # After the assets that it is made of, which would count as newer than the graphs otherwise.
            self._log_picture()

    def _log_picture(self) -> None:
        """Log the graphs' asset as materialized, with the last graph and the counts since the one before."""
        metadata = dict(describe_sealing_progress(self._undrawn))[_GRAPHS]
        picture = self.describe_last_graph(self._undrawn)
        self._context.log_event(dg.AssetMaterialization(_GRAPHS, metadata={**picture, **metadata}))
        self._undrawn.clear()
        self._drawn_at = time.monotonic()

    def describe_last_graph(self, batches: Sequence[SealedBatch]) -> dict[str, dg.MetadataValue]:
        """Return workflow, picture and figures of the first graph that the last of some batches changed.

        Without a changed graph nothing is returned; of a graph that cannot be read, its workflow alone.
        """
        scope = next((batch.scopes[0] for batch in reversed(batches) if batch.scopes), None)
        if scope is None:
            return {}
        name = dg.MetadataValue.text(partition_key(scope))
        try:
            graph = read_graph_metadata(self._runtime, scope, max_sessions=_DRAWN_SESSIONS)
        except Exception:
            log.exception("the graph of %s cannot be drawn", name.text)
            graph = {}
        return {"workflow": name, **graph}


seal_stopped_sessions = dg.define_asset_job(
    "seal_stopped_sessions",
    selection=dg.AssetSelection.assets(sealing).without_checks(),
    description="Seals sessions as they stop, until none has stopped for some minutes.",
    executor_def=dg.in_process_executor,
    tags={QUEUE_TAG: _GROUP},
)


@dg.sensor(
    job=seal_stopped_sessions,
    minimum_interval_seconds=1,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts runs that seal stopped sessions. Switched off, nothing new is sealed or exported.",
)
def stopped_sessions(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """Start a sealing drain run when sessions wait that the runs at work do not get to."""
    return request_sealing_drain_run(lambda: dagster_instance_of(context), RecorderResource())


def request_sealing_drain_run(
    open_instance: Callable[[], dg.DagsterInstance], recorder: RecorderResource
) -> dg.RunRequest | dg.SkipReason:
    """Return the request for a sealing drain run if one is needed; Dagster's instance is opened only then."""
    runtime = recorder.runtime
    state = poll_lanes_for_sealing_run(runtime.database, runs=runtime.settings.seal_runs, seconds=_WATCH_S)
    if state != "work waits":
        return dg.SkipReason(f"Nothing to start: {state}.")
    with runtime.database.transaction(write=False) as db:
        at_work = list_sealing_runs(db)
    job_name = seal_stopped_sessions.name
    return request_dagster_run(open_instance(), job_name, at_work=at_work, longest_pause_s=_LONGEST_PAUSE_S)


def poll_lanes_for_sealing_run(
    database: Database, *, runs: int, seconds: float, busy_after_s: float = 0.5
) -> str:
    """Poll until there is work for a new run, or the time is up; return the state as text.

    While no run is at work, any work is enough. Another one is started beside those at work, up to `runs`,
    when a lane has waited longer than a run that has nothing to do would let it.

    Args:
        database: database of the deployment.
        runs: largest number of runs.
        seconds: longest time to poll; 0 reads the state once.
        busy_after_s: a lane that has waited longer shows that all runs are busy.
    """
    until = time.monotonic() + seconds
    state = "no session has stopped"
    while True:
        with database.transaction(write=False) as db:
            at_work = len(list_sealing_runs(db))
            if at_work >= runs:
                return "enough runs are at work"
            if at_work == 0 and has_sealing_work(db):
                return "work waits"
            if at_work > 0:
                state = "the runs at work keep up"
                if (compute_longest_wait_s(db, runs=runs) or 0) > busy_after_s:
                    return "work waits"
        if time.monotonic() >= until:
            return state
        time.sleep(_WATCH_POLL_BUSY_S if at_work else _WATCH_POLL_S)


@dg.multi_asset_check(
    specs=[
        dg.AssetCheckSpec(
            "all_events_arrived",
            asset="session_events",
            description=(
                "The lake holds all events of the sealed sessions, in files that exist in full, in every "
                "workspace and mode."
            ),
        ),
        dg.AssetCheckSpec(
            "all_frames_arrived",
            asset="session_frames",
            description=(
                "The lake holds all frame rows of the sealed sessions, in files that exist in full, in every "
                "workspace and mode."
            ),
        ),
    ]
)
def arrivals(recorder: RecorderResource) -> Iterator[dg.AssetCheckResult]:
    """Compare rows and files of every workspace and mode with the sealed sessions."""
    arrived = check_table_arrivals(recorder.runtime)
    for kind, check in (("events", "all_events_arrived"), ("frames", "all_frames_arrived")):
        tables = [table for table in arrived if table.kind == kind]
        incomplete = [table.describe() for table in tables if not table.is_complete]
        yield dg.AssetCheckResult(
            asset_key=f"session_{kind}",
            check_name=check,
            passed=not incomplete,
            description="; ".join(incomplete[:_DESCRIBED_TABLES]) or None,
            metadata={
                "tenants": len(tables),
                kind: sum(table.files.rows for table in tables),
                "files": sum(table.files.count for table in tables),
                "incomplete": incomplete,
            },
        )


check_arrivals = dg.define_asset_job(
    "check_arrivals",
    selection=dg.AssetSelection.checks(arrivals),
    description="Compares rows and files of the lake with the sealed sessions.",
)
daily_arrivals = dg.ScheduleDefinition(
    name="daily_arrivals",
    job=check_arrivals,
    cron_schedule="30 4 * * *",
    description="Runs the checks of the lake's events and frames.",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)


defs = dg.Definitions(
    assets=[sealing],
    asset_checks=[arrivals],
    jobs=[seal_stopped_sessions, check_arrivals],
    sensors=[stopped_sessions],
    schedules=[daily_arrivals],
)
