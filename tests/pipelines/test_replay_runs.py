"""The run of replays in Dagster: started for sessions without replayability, and filled in by it."""

import os
import signal
import threading
from datetime import timedelta
from pathlib import Path

import dagster as dg

from pipelines.replays import replays, request_replay_run
from pipelines.resources import RecorderResource, close_runtimes
from recorder import clock
from recorder.models.session import SessionRow
from recorder.replay_service.work import LEASE
from recorder.storage.leases import is_lease_held
from tests.support.databases import create_file
from tests.support.factories import running_app
from tests.support.two_click_sessions import sealed_run


def test_a_run_is_started_for_sealed_sessions_and_computes_their_replayability(tmp_path: Path) -> None:
    recorder = RecorderResource(data_dir=str(tmp_path))
    with running_app(tmp_path, create_file(tmp_path)) as service, dg.DagsterInstance.ephemeral() as instance:
        caller = service.make_caller()
        session_id = sealed_run(caller)
        for age_s, answer in ((0, dg.SkipReason), (11, dg.RunRequest)):
            with service.runtime.database.transaction(write=True) as db:
                db.get_one(SessionRow, session_id).sealed_at = clock.now() - timedelta(seconds=age_s)
            assert isinstance(request_replay_run(lambda: instance, recorder), answer)
        config = dg.RunConfig({"replays": {"config": {"idle_seconds": 0}}})
        done = dg.materialize(
            [replays], instance=instance, resources={"recorder": recorder}, run_config=config
        )
        (materialization,) = done.asset_materializations_for_node("replays")
        assert materialization.metadata["replayability"].value == {"computed": 1}
        assert caller.get(f"/v1/sessions/{session_id}").json()["replayability"] == 1.0
        assert isinstance(request_replay_run(lambda: instance, recorder), dg.SkipReason)
    close_runtimes()


def test_a_run_that_is_stopped_ends_in_order(tmp_path: Path) -> None:
    create_file(tmp_path)
    recorder = RecorderResource(data_dir=str(tmp_path))
    with dg.DagsterInstance.ephemeral() as instance:
        config = dg.RunConfig({"replays": {"config": {"idle_seconds": 600}}})
        stop = threading.Timer(5, os.kill, (os.getpid(), signal.SIGTERM))
        stop.start()
        done = dg.materialize(
            [replays], instance=instance, resources={"recorder": recorder}, run_config=config
        )
        stop.join()
    assert done.success
    with recorder.runtime.database.transaction(write=False) as db:
        assert not is_lease_held(db, LEASE, now_ms=clock.now_ms())
    close_runtimes()
