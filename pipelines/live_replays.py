"""Live replays in Dagster: one run each, while no replay worker runs. Decision 0045.

A replay is claimed once, by the run or by a worker. The sensor asks for runs, and ends replays whose process
is gone. Guided replays wait for people: one of them runs at a time, so that the others have slots.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import dagster as dg
from sqlmodel import Session as DbSession

from pipelines.dagster_runs import (
    QUEUE_TAG,
    compute_pause_after_failed_runs,
    dagster_instance_of,
    fail_lost_dagster_run,
    list_unfinished_dagster_runs,
)
from pipelines.divergence_picture import make_divergence_metadata
from pipelines.resources import RecorderResource
from recorder.fair_scheduling import compute_workspace_share
from recorder.live.claimed_replay import (
    claim_live_replay,
    end_lost_live_replays,
    is_guided_replay,
    is_guided_replay_running,
    list_leased_live_replays,
    list_waiting_live_replays,
    run_claimed_replay,
)
from recorder.live.replay_plan import LiveReplayPlanner
from recorder.live.worker import has_replay_worker
from recorder.models.replay import ReplayRow
from recorder.runtime import Runtime

REPLAY_TAG = "recorder/replay"
WORKSPACE_TAG = "recorder/workspace"
#: Tag of runs whose replays may wait for decisions.
GUIDED_TAG = "recorder/guided"
_LOOKED_AT = 1_000
#: Earlier runs by which workspaces take turns.
_LAST_RUNS = 100


class LiveReplayConfig(dg.Config):
    """The replay that a run is for."""

    replay_id: str


@dg.asset(
    name="live_replays",
    description="One row per live replay that Dagster did, with what became of it.",
    group_name="replays",
    kinds={"python"},
)
def live_replays(
    context: dg.AssetExecutionContext, config: LiveReplayConfig, recorder: RecorderResource
) -> dg.MaterializeResult[None]:
    """Do a live replay in a browser of its own, unless another process claimed it or a guided one runs."""
    runtime = recorder.runtime
    with runtime.database.transaction(write=True) as db:
        claimed = claim_live_replay(db, context.run.run_id, [config.replay_id], has_one_guided=True)
    if claimed is None:
        context.log.info(
            f"Replay {config.replay_id} does not wait any more, or waits for a guided one; nothing to do."
        )
        return dg.MaterializeResult(metadata={"dagster/row_count": 0})
    with LiveReplayPlanner() as planner:
        run_claimed_replay(runtime, *claimed, planner)
    with runtime.database.transaction(write=False) as db:
        row = db.get(ReplayRow, config.replay_id)
    status = "removed" if row is None else row.status
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": 1,
            "replay": config.replay_id,
            "status": status,
            **make_divergence_metadata(runtime, config.replay_id),
        }
    )


replay_live = dg.define_asset_job(
    "replay_live",
    selection=dg.AssetSelection.assets(live_replays),
    description="Does one live replay.",
    tags={QUEUE_TAG: "live_replays"},
    executor_def=dg.in_process_executor,
)


@dg.sensor(
    job=replay_live,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts a run for each live replay, while no replay worker runs.",
)
def queued_live_replays(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Start a run for each live replay that waits while no replay worker runs, as far as slots are free.

    Of guided replays one runs at a time.
    """
    return request_live_replay_runs(lambda: dagster_instance_of(context), RecorderResource())


def request_live_replay_runs(
    open_instance: Callable[[], dg.DagsterInstance], recorder: RecorderResource
) -> dg.SensorResult | dg.SkipReason:
    """Return the requests for runs; Dagster's instance is opened only if a replay waits."""
    runtime = recorder.runtime
    end_lost_live_replays(runtime.database)
    with runtime.database.transaction(write=False) as db:
        if has_replay_worker(db):
            return dg.SkipReason("A replay worker runs.")
        is_guided_running = is_guided_replay_running(db)
        waiting = _list_waiting_replays(db, runtime.settings.browser.slots, has_guided=not is_guided_running)
    if not waiting:
        return dg.SkipReason("No live replay waits.")
    instance = open_instance()
    records = _list_runs_at_work(instance, runtime)
    tags = [record.dagster_run.tags for record in records]
    requested = {tag.get(REPLAY_TAG) for tag in tags}
    per_workspace = Counter(tag.get(WORKSPACE_TAG) for tag in tags)
    slots = runtime.settings.browser.slots
    has_guided = is_guided_running or any(GUIDED_TAG in tag for tag in tags)
    requests: list[dg.RunRequest] = []
    pauses: dict[str, float] = {}
    for row in _order_live_replays_by_turn(instance, waiting):
        if len(records) + len(requests) >= slots:
            break
        if row.id in requested or per_workspace[row.workspace_id] >= compute_workspace_share(slots):
            continue
        is_guided = is_guided_replay(row)
        if is_guided and has_guided:
            continue
        if row.workspace_id not in pauses:
            # Runs of one workspace that fail hold up no other one.
            tags_of_workspace = {WORKSPACE_TAG: row.workspace_id}
            pauses[row.workspace_id] = compute_pause_after_failed_runs(
                instance, replay_live.name, tags=tags_of_workspace
            )
        if pauses[row.workspace_id]:
            continue
        per_workspace[row.workspace_id] += 1
        has_guided = has_guided or is_guided
        requests.append(
            dg.RunRequest(
                run_config={"ops": {"live_replays": {"config": {"replay_id": row.id}}}},
                tags={
                    REPLAY_TAG: row.id,
                    WORKSPACE_TAG: row.workspace_id,
                    **({GUIDED_TAG: "true"} if is_guided else {}),
                },
            )
        )
    if not requests and any(pauses.values()):
        least = min(pause for pause in pauses.values() if pause)
        return dg.SkipReason(f"The last runs failed; the next one starts in {least:.0f} s.")
    return dg.SensorResult(run_requests=requests)


def _list_waiting_replays(db: DbSession, slots: int, *, has_guided: bool) -> list[ReplayRow]:
    """Return replays that wait, of each workspace some; those that may wait for decisions listed apart.

    So no replay is left out because guided ones that must wait are older.
    """
    waiting = list_waiting_live_replays(db, each=slots, limit=_LOOKED_AT, is_guided=False)
    if has_guided:
        waiting += list_waiting_live_replays(db, each=1, limit=_LOOKED_AT, is_guided=True)
    return sorted(waiting, key=lambda row: row.id)


def _list_runs_at_work(instance: dg.DagsterInstance, runtime: Runtime) -> list[dg.RunRecord]:
    """Return the unfinished runs; mark those as failed whose processes are gone: they would keep slots."""
    records = list_unfinished_dagster_runs(instance, job_name=replay_live.name)
    with runtime.database.transaction(write=False) as db:
        leased = list_leased_live_replays(
            db, [record.dagster_run.tags.get(REPLAY_TAG, "") for record in records]
        )
    return [
        record
        for record in records
        if record.dagster_run.tags.get(REPLAY_TAG) in leased or not fail_lost_dagster_run(instance, record)
    ]


def _order_live_replays_by_turn(
    instance: dg.DagsterInstance, waiting: Sequence[ReplayRow]
) -> list[ReplayRow]:
    """Return waiting replays so that the workspace whose last run began longest ago is first."""
    records = instance.get_run_records(dg.RunsFilter(job_name=replay_live.name), limit=_LAST_RUNS)
    newest: dict[str | None, int] = {}
    for number, record in enumerate(records):
        newest.setdefault(record.dagster_run.tags.get(WORKSPACE_TAG), number)
    seen: Counter[str] = Counter()
    turns: dict[str, int] = {}
    for row in waiting:
        turns[row.id] = seen[row.workspace_id]
        seen[row.workspace_id] += 1
    return sorted(waiting, key=lambda row: (turns[row.id], -newest.get(row.workspace_id, _LAST_RUNS), row.id))


defs = dg.Definitions(assets=[live_replays], jobs=[replay_live], sensors=[queued_live_replays])
