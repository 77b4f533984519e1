"""Replays in Dagster: the drain run of dry ones and of replayability, and what became of them. Design §2.

A Dagster run starts in seconds and a dry replay takes milliseconds: one run replays whatever waits, and ends
when nothing has waited for some seconds. docs/decisions/0006-drain-run.md.
"""

import threading
import time
from collections.abc import Callable

import dagster as dg
from pydantic import Field

from pipelines.dagster_runs import dagster_instance_of, request_dagster_run
from pipelines.divergence_picture import make_divergence_metadata
from pipelines.resources import RecorderResource
from pipelines.sealing_drain import defer_interrupts
from recorder.replay_service.due_replays import LEASE, has_due_replays
from recorder.replay_service.replay_drain_run import ReplayDrainRun
from recorder.replay_service.replayability.replayability_queue import has_queued_replayability
from recorder.replay_service.replayability.replayability_work import ReplayabilityWork
from recorder.replay_service.scheduling.replay_drain_counts import ReplayDrainCounts

_POLL_S = 0.1
#: The same for a run that goes on only because sessions wait for their next attempt.
_PAUSED_POLL_S = 1.0


class ReplaysConfig(dg.Config):
    """Duration of a run that replays sessions."""

    idle_seconds: float = Field(
        default=120, ge=0, le=3_600, description="End after so many seconds without work."
    )
    max_seconds: float = Field(
        default=3_600,
        gt=0,
        le=86_400,
        description="Let another run take over after so many seconds, and the time for missing files.",
    )


@dg.asset(
    name="replays",
    description=(
        "Ended replays of sealed sessions (matched, diverged or failed), ended recoveries, and computed "
        "values of replayability."
    ),
    group_name="replays",
    kinds={"python"},
)
def replays(
    context: dg.AssetExecutionContext, config: ReplaysConfig, recorder: RecorderResource
) -> dg.MaterializeResult[None]:
    """Replay what waits, and compute the replayability of sealed sessions, until nothing has waited long."""
    run = ReplayDrainRun(recorder.runtime, context.run.run_id)
    if not run.take():
        context.log.info("Another run replays sessions; nothing to do.")
        return dg.MaterializeResult(metadata=describe_replays(run.report))
    values = ReplayabilityWork(recorder.runtime)
    is_interrupted = threading.Event()
    try:
        with defer_interrupts(is_interrupted.set):
            drain_replays(run, values, config, is_interrupted)
    finally:
        values.end()
        run.release()
    return dg.MaterializeResult(
        metadata={
            **describe_replays(run.report),
            **make_divergence_metadata(recorder.runtime, run.report.worst_id),
            "replayability": dg.MetadataValue.json(dict(values.counts)),
        }
    )


def drain_replays(
    run: ReplayDrainRun, values: ReplayabilityWork, config: ReplaysConfig, is_interrupted: threading.Event
) -> None:
    """Work until nothing has waited for some seconds, or until the time of the run is over.

    While sessions wait for their next attempt the run goes on, since it counts the attempts in memory: the
    next run would begin at once, and count them again from the first.
    """
    began = worked = time.monotonic()
    while (now := time.monotonic()) - began < config.max_seconds + values.retry_s:
        has_worked = run.work_on_due_replays()
        if values.take_turn(run.held, is_busy=run.is_busy) or has_worked:
            worked = time.monotonic()
        elif now - worked < config.idle_seconds:
            time.sleep(_POLL_S)
        elif values.has_paused:
            is_interrupted.wait(_PAUSED_POLL_S)
        else:
            break
        if is_interrupted.is_set():
            break


def describe_replays(report: ReplayDrainCounts) -> dict[str, dg.MetadataValue]:
    """Return counts by status, divergences by kind, ended recoveries, and a histogram of similarities."""
    tenths = "\n".join(
        f"| {tenth / 10:.1f} | {report.similarities[tenth]} |" for tenth in sorted(report.similarities)
    )
    return {
        "dagster/row_count": dg.MetadataValue.int(report.statuses.total()),
        "statuses": dg.MetadataValue.json(dict(report.statuses)),
        "divergences": dg.MetadataValue.json(dict(report.divergences)),
        "recoveries": dg.MetadataValue.json(dict(report.recoveries)),
        "least_similarity": dg.MetadataValue.md(f"| from | replays |\n|---|---|\n{tenths}"),
    }


replay_sessions = dg.define_asset_job(
    "replay_sessions",
    selection=dg.AssetSelection.assets(replays),
    description="Replays sessions as clients ask for it and computes the replayability of sealed sessions, "
    "of earlier releases too, until none has waited for some minutes.",
    executor_def=dg.in_process_executor,
)


@dg.sensor(
    job=replay_sessions,
    minimum_interval_seconds=1,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts the run that replays and recovers sessions, and computes replayability.",
)
def queued_replays(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """Start a run when replays, or sessions without replayability, wait and none is at work."""
    return request_replay_drain_run(lambda: dagster_instance_of(context), RecorderResource())


def request_replay_drain_run(
    open_instance: Callable[[], dg.DagsterInstance], recorder: RecorderResource
) -> dg.RunRequest | dg.SkipReason:
    """Return the request for a run if one is needed; Dagster's instance is opened only then."""
    with recorder.runtime.database.transaction(write=False) as db:
        if not (has_due_replays(db) or has_queued_replayability(db, LEASE)):
            return dg.SkipReason("No replay and no session waits, or a run is at work.")
    return request_dagster_run(open_instance(), replay_sessions.name)


defs = dg.Definitions(assets=[replays], jobs=[replay_sessions], sensors=[queued_replays])
