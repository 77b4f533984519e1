"""The run of replays in Dagster: started for sessions without replayability, and filled in by it."""

import base64
import io
import os
import re
import signal
import threading
from datetime import timedelta
from pathlib import Path

import dagster as dg
from PIL import Image

from pipelines.divergence_picture import make_divergence_metadata
from pipelines.replays import ReplaysConfig, drain_replays, replays, request_replay_drain_run
from pipelines.resources import RecorderResource, close_shared_runtimes
from recorder import clock
from recorder.models.session import SessionRow
from recorder.replay_service.due_replays import LEASE
from recorder.replay_service.replay_drain_run import ReplayDrainRun
from recorder.replay_service.replayability.replayability_work import ReplayabilityWork
from recorder.storage.leases import is_lease_held
from tests.support.databases import create_file
from tests.support.factories import running_app
from tests.support.two_click_sessions import DONE, OTHER, sealed_run


def test_a_run_is_started_for_sealed_sessions_and_computes_their_replayability(tmp_path: Path) -> None:
    recorder = RecorderResource(data_dir=str(tmp_path))
    with running_app(tmp_path, create_file(tmp_path)) as service, dg.DagsterInstance.ephemeral() as instance:
        caller = service.make_caller()
        session_id = sealed_run(caller)
        for age_s, answer in ((0, dg.SkipReason), (11, dg.RunRequest)):
            with service.runtime.database.transaction(write=True) as db:
                db.get_one(SessionRow, session_id).sealed_at = clock.now() - timedelta(seconds=age_s)
            assert isinstance(request_replay_drain_run(lambda: instance, recorder), answer)
        config = dg.RunConfig({"replays": {"config": {"idle_seconds": 0}}})
        done = dg.materialize(
            [replays], instance=instance, resources={"recorder": recorder}, run_config=config
        )
        (materialization,) = done.asset_materializations_for_node("replays")
        assert materialization.metadata["replayability"].value == {"computed": 1}
        assert caller.get(f"/v1/sessions/{session_id}").json()["replayability"] == 1.0
        assert isinstance(request_replay_drain_run(lambda: instance, recorder), dg.SkipReason)
    close_shared_runtimes()


def test_a_run_shows_the_pages_of_its_worst_divergence(tmp_path: Path) -> None:
    recorder = RecorderResource(data_dir=str(tmp_path))
    with running_app(tmp_path, create_file(tmp_path)) as service, dg.DagsterInstance.ephemeral() as instance:
        caller = service.make_caller(scope="admin")
        session_id, worst, other = (
            sealed_run(caller),
            sealed_run(caller, first=DONE),
            sealed_run(caller, first=OTHER),
        )
        made = [
            caller.post("/v1/replays", {"session_id": session_id, "sandbox": "dry", **members}).json()["id"]
            for members in ({}, {"against": {"session_id": other}}, {"against": {"session_id": worst}})
        ]
        config = dg.RunConfig({"replays": {"config": {"idle_seconds": 0}}})
        done = dg.materialize(
            [replays], instance=instance, resources={"recorder": recorder}, run_config=config
        )
        (materialization,) = done.asset_materializations_for_node("replays")
        shown = materialization.metadata["worst_divergence"]
        # Erasures remove texts such as this from the records.
        assert isinstance(shown, dg.MarkdownMetadataValue)
        divergences = [caller.get(f"/v1/replays/{replay_id}").json()["divergence"] for replay_id in made]
        assert divergences[2]["similarity"] < divergences[1]["similarity"]
        text = str(shown.value)
        assert text.startswith(f"{made[2]}: {divergences[2]['kind']} at step 1") and len(text) < 300_000
        pictures = [
            Image.open(io.BytesIO(base64.b64decode(data)))
            for data in re.findall(r"data:image/jpeg;base64,([^)]+)\)", text)
        ]
        assert [picture.size for picture in pictures] == [(16, 12)] * 2
        frames = caller.get(f"/v1/sessions/{worst}/frames").json()["data"]
        assert divergences[2]["observed_frame_id"] in [row["id"] for row in frames]
        assert caller.delete(f"/v1/sessions/{worst}").status_code == 204
        assert (
            make_divergence_metadata(recorder.runtime, made[2])
            == make_divergence_metadata(recorder.runtime, made[0])
            == {}
        )
    close_shared_runtimes()


def test_a_run_goes_on_until_the_last_attempt_for_a_session_with_lost_snapshots(tmp_path: Path) -> None:
    with running_app(tmp_path, create_file(tmp_path)) as service:
        caller = service.make_caller()
        session_id = sealed_run(caller)
        folder = Path(service.runtime.settings.blob_url, "frames", caller.key.workspace_id, session_id)
        for pack in folder.glob("*.pack"):
            pack.unlink()
        run = ReplayDrainRun(service.runtime, "run")
        assert run.take()
        values = ReplayabilityWork(service.runtime, lost_pause_s=5.0)
        try:
            config = ReplaysConfig(idle_seconds=0, max_seconds=0.1)
            drain_replays(run, values, config, threading.Event())
        finally:
            values.end()
            run.release()
        assert +values.counts == {"failures": 3, "left_out": 1}
        with service.runtime.database.transaction(write=False) as db:
            row = db.get_one(SessionRow, session_id)
            assert row.replayability is None and row.replayability_at is not None


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
    close_shared_runtimes()
