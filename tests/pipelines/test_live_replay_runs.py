"""Runs of live replays: which ones the sensor asks for, and what a run leaves. Decision 0045."""

from datetime import timedelta

import dagster as dg
import pytest
from dagster._core.utils import make_new_run_id
from sqlmodel import select

from pipelines.live_replays import (
    GUIDED_TAG,
    REPLAY_TAG,
    WORKSPACE_TAG,
    live_replays,
    request_live_replay_runs,
)
from recorder import clock
from recorder.access.workspaces import create_workspace
from recorder.ids import new_timed_id
from recorder.live.claimed_replay import claim_live_replay
from recorder.live.worker import ReplayWorker, has_replay_worker
from recorder.models.replay import ReplayMode, ReplayPolicyBody, ReplayRow
from recorder.replay_service.requests.replays import end_replay_as_failed
from tests.support.dagster_deployment import Deployment
from tests.support.sealed_sessions import Recording, seal


def queue(deployment: Deployment, workspace_id: str, session_id: str, kind: ReplayMode = "full") -> str:
    """Queue a live replay; return its id."""
    replay_id, now = new_timed_id("rpl")
    row = ReplayRow(
        id=replay_id,
        workspace_id=workspace_id,
        mode="live",
        workflow="checkout",
        session_id=session_id,
        sandbox="live",
        kind=kind,
        status="queued",
        spec={
            "anchor": None,
            "until": None,
            "against": None,
            "policy": ReplayPolicyBody().model_dump(mode="json"),
        },
        input_names=[],
        decisions={},
        created_at=now,
    )
    with deployment.runtime.database.transaction(write=True) as db:
        db.add(row)
    return replay_id


def asked_for(deployment: Deployment) -> list[str]:
    """Return the replays for which the sensor requests runs."""
    result = request_live_replay_runs(lambda: deployment.instance, deployment.recorder)
    return (
        []
        if isinstance(result, dg.SkipReason)
        else [run.tags[REPLAY_TAG] for run in result.run_requests or ()]
    )


@pytest.fixture
def replays(deployment: Deployment) -> list[str]:
    """Return two replays of one workspace, then one of another."""
    (session_id,) = seal(deployment.runtime, [Recording()], workspace_id=deployment.workspace_id)
    with deployment.runtime.database.transaction(write=True) as db:
        secret = deployment.runtime.settings.secret
        other = create_workspace(db, "other", region="us", secret=secret, tier="unlimited").workspace_id
    (foreign,) = seal(deployment.runtime, [Recording()], workspace_id=other)
    mine = [queue(deployment, deployment.workspace_id, session_id) for _ in range(2)]
    return [*mine, queue(deployment, other, foreign)]


def test_the_sensor_asks_for_one_run_each_and_half_of_the_slots_for_a_workspace(
    deployment: Deployment, replays: list[str]
) -> None:
    assert deployment.runtime.settings.browser.slots == 2
    assert asked_for(deployment) == [replays[0], replays[2]]


def test_runs_whose_processes_are_gone_keep_no_slots(
    deployment: Deployment, replays: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [make_new_run_id() for _ in range(2)]
    for run_id in lost:
        tags = {REPLAY_TAG: new_timed_id("rpl")[0]}
        status = dg.DagsterRunStatus.STARTED
        run = dg.DagsterRun(job_name="replay_live", run_id=run_id, status=status, tags=tags)
        deployment.instance.add_run(run)
    assert asked_for(deployment) == []
    later = clock.now() + timedelta(minutes=1)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert asked_for(deployment) == [replays[0], replays[2]]
    runs = [deployment.instance.get_run_by_id(run_id) for run_id in lost]
    assert [run and run.status for run in runs] == [dg.DagsterRunStatus.FAILURE] * 2


def test_workspaces_take_turns_and_the_failed_runs_of_one_hold_up_no_other(
    deployment: Deployment, replays: list[str]
) -> None:
    # The first workspace has more replays that wait than the sensor has ever asked for at once.
    with deployment.runtime.database.transaction(write=False) as db:
        row, foreign = db.get_one(ReplayRow, replays[0]), db.get_one(ReplayRow, replays[2])
    for _ in range(120):
        queue(deployment, row.workspace_id, row.session_id)
    run = dg.DagsterRun(
        job_name="replay_live",
        run_id=make_new_run_id(),
        status=dg.DagsterRunStatus.FAILURE,
        tags={REPLAY_TAG: "rpl_before", WORKSPACE_TAG: row.workspace_id},
    )
    deployment.instance.add_run(run)
    assert asked_for(deployment) == [replays[2]]
    tags = {REPLAY_TAG: "rpl_last", WORKSPACE_TAG: foreign.workspace_id}
    deployment.instance.add_run(run._replace(run_id=make_new_run_id(), tags=tags))
    assert asked_for(deployment) == []


def test_the_sensor_leaves_replays_to_a_worker(deployment: Deployment, replays: list[str]) -> None:
    worker = ReplayWorker(deployment.runtime, 1)
    seen: list[list[str]] = []

    def look() -> None:
        seen.append(asked_for(deployment))
        worker.stop()

    worker.run(look)
    assert seen == [[]]
    with deployment.runtime.database.transaction(write=False) as db:
        assert not has_replay_worker(db)
    assert asked_for(deployment) == [replays[0], replays[2]]


@pytest.fixture
def guided(deployment: Deployment, replays: list[str]) -> list[str]:
    """Return a guided replay of each workspace, requested before another full one of both."""
    with deployment.runtime.database.transaction(write=True) as db:
        rows = [db.get_one(ReplayRow, replay_id) for replay_id in (replays[0], replays[2])]
        for row in db.exec(select(ReplayRow)):
            row.finished_at, row.status = clock.now(), "failed"
            db.add(row)
    return [
        queue(deployment, row.workspace_id, row.session_id, kind)
        for kind in ("guided", "full")
        for row in rows
    ]


def test_the_sensor_asks_for_one_guided_replay_at_a_time_beside_others(
    deployment: Deployment, guided: list[str]
) -> None:
    mine, theirs, _, their_full = guided
    result = request_live_replay_runs(lambda: deployment.instance, deployment.recorder)
    assert isinstance(result, dg.SensorResult) and result.run_requests is not None
    # The workspace of the guided one has its half of the two slots.
    assert [request.tags[REPLAY_TAG] for request in result.run_requests] == [mine, their_full]
    assert [GUIDED_TAG in request.tags for request in result.run_requests] == [True, False]
    # Dagster has begun the run, which has not claimed its replay.
    tags = dict(result.run_requests[0].tags)
    run = dg.DagsterRun("replay_live", make_new_run_id(), status=dg.DagsterRunStatus.STARTED, tags=tags)
    deployment.instance.add_run(run)
    assert asked_for(deployment) == [their_full]
    with deployment.runtime.database.transaction(write=True) as db:
        assert claim_live_replay(db, run.run_id, [mine], has_one_guided=True) is not None
    assert asked_for(deployment) == [their_full]
    deployment.instance.report_run_failed(run)
    with deployment.runtime.database.transaction(write=True) as db:
        end_replay_as_failed(db, db.get_one(ReplayRow, mine), "internal", "The test ended it.")
    assert asked_for(deployment) == [theirs]


def test_a_run_leaves_its_guided_replay_waiting_while_another_one_runs(
    deployment: Deployment, guided: list[str]
) -> None:
    mine, theirs, _, their_full = guided
    with deployment.runtime.database.transaction(write=True) as db:
        assert claim_live_replay(db, "run", [mine], has_one_guided=True) is not None
    for replay_id in (theirs, their_full):
        assert run_replay(deployment, replay_id).success
    assert [read_status(deployment, replay_id) for replay_id in guided[:2]] == ["running", "queued"]
    assert read_status(deployment, their_full) in ("failed", "diverged")
    with deployment.runtime.database.transaction(write=True) as db:
        end_replay_as_failed(db, db.get_one(ReplayRow, mine), "internal", "The test ended it.")
        assert claim_live_replay(db, "run", [theirs], has_one_guided=True) is not None


def read_status(deployment: Deployment, replay_id: str) -> str:
    """Return the status of a replay."""
    with deployment.runtime.database.transaction(write=False) as db:
        return db.get_one(ReplayRow, replay_id).status


def run_replay(deployment: Deployment, replay_id: str) -> dg.ExecuteInProcessResult:
    """Do what Dagster's run for a replay does."""
    return dg.materialize(
        [live_replays],
        run_config={"ops": {"live_replays": {"config": {"replay_id": replay_id}}}},
        instance=deployment.instance,
        resources={"recorder": deployment.recorder},
    )


def test_a_run_does_its_replay_unless_it_was_claimed(deployment: Deployment, replays: list[str]) -> None:
    with deployment.runtime.database.transaction(write=True) as db:
        assert claim_live_replay(db, "worker", [replays[1]]) is not None
    assert run_replay(deployment, replays[1]).success
    assert run_replay(deployment, replays[0]).success
    with deployment.runtime.database.transaction(write=False) as db:
        claimed, done = db.get_one(ReplayRow, replays[1]), db.get_one(ReplayRow, replays[0])
    assert (claimed.status, claimed.finished_at) == ("running", None)
    # The workspace allows no host: the first page cannot be opened.
    assert done.finished_at is not None and done.finished_at <= clock.now()
    assert done.status in ("failed", "diverged")
