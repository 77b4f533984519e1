"""Retention and purges through Dagster: real SQLite, a real lake, a real instance. Spec §8.3."""

import shutil
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from sqlmodel import select

from pipelines import retention as pipeline
from pipelines.resources import RecorderResource
from recorder import clock
from recorder.access.keys import Caller
from recorder.audit.log import Origin, record_audit_entry
from recorder.audit.verify import verify_audit
from recorder.governance import table_rewrites
from recorder.governance.erasures import request_erasure
from recorder.governance.purging.purge_runs import PURGE_LEASE
from recorder.ids import first_id_at
from recorder.models.governance import ErasureCreate, ErasureRow, PurgeRow
from recorder.storage.leases import hold_lease
from recorder.tenant import Tenant
from tests.support.dagster_deployment import Deployment
from tests.support.purges import make_due, purge_row
from tests.support.rewritten_exports import hide_for_purge
from tests.support.sealed_sessions import Recording, seal


@pytest.fixture(autouse=True)
def impatience(deployment: Deployment) -> None:
    """Let runs not wait two minutes for the next step."""
    deployment.recorder = RecorderResource(data_dir=deployment.recorder.data_dir, purge_patience_s=0.0)


def materialize(deployment: Deployment, asset: dg.AssetsDefinition) -> dict[str, Any]:
    """Materialize one asset; return the metadata of its materialization or observation as plain values."""
    done = dg.materialize([asset], instance=deployment.instance, resources={"recorder": deployment.recorder})
    events = [*done.asset_materializations_for_node(asset.op.name), *done.get_asset_observation_events()]
    (event,) = (
        event
        if isinstance(event, dg.AssetMaterialization)
        else event.asset_observation_data.asset_observation
        for event in events
    )
    return {name: value.value for name, value in event.metadata.items()}


def add_old_session(deployment: Deployment, *, days: int, frames: int = 0) -> str:
    """Add a session that was sealed some days ago."""
    sealed_at = clock.now() - timedelta(days=days)
    recording = Recording(
        started_at=sealed_at,
        sealed_at=sealed_at,
        frames=list(range(frames)),
        session_id=first_id_at("ses", sealed_at),
    )
    return seal(deployment.runtime, [recording], workspace_id=deployment.workspace_id)[0]


def request_erasure_of_ada(deployment: Deployment) -> str:
    """Request the erasure of a person; return its id."""
    runtime, tenant = deployment.runtime, Tenant(deployment.workspace_id, "live")
    request, origin = ErasureCreate(subject="ada", scope="all"), Origin.operator(tenant.workspace_id)
    with runtime.database.transaction(write=True) as db:
        caller = Caller(tenant, "key_x")
        return request_erasure(db, runtime.settings.secret, caller, origin, request).id


def test_expired_sessions_are_hidden_and_then_purged(deployment: Deployment) -> None:
    session_id = add_old_session(deployment, days=600)
    with deployment.runtime.database.transaction(write=True) as db:
        origin = Origin.operator(deployment.workspace_id)
        record_audit_entry(db, origin, "key.revoke", resource_type="key", resource_id="key_1")
    shown = materialize(deployment, pipeline.expired_records)
    assert (shown["expired_sessions"], shown["failures"], shown["failed"]) == (1, 0, "")
    heads = {row.data["workspace_id"]: row.data for row in shown["audit_heads"].records}
    head = str(heads[deployment.workspace_id]["hash"])
    assert verify_audit(deployment.runtime.database, heads=[head]).is_valid
    kinds = {row.data["kind"]: row.data["count"] for row in shown["by_workspace"].records}
    assert kinds["expired_sessions"] == 1 and shown["rows"] == len(kinds)
    assert purge_row(deployment.runtime, session_id).step == "content"
    ended = 0
    for _ in range(6):
        make_due(deployment.runtime)
        shown = materialize(deployment, pipeline.purged_sessions)
        ended += shown["sessions"]
    assert ended == 1 and purge_row(deployment.runtime, session_id).step == "done"


def test_a_materialization_of_purges_shows_counts_by_cause(deployment: Deployment) -> None:
    session_id = add_old_session(deployment, days=1, frames=2)
    hide_for_purge(deployment.runtime, session_id)
    while purge_row(deployment.runtime, session_id).step != "done":
        make_due(deployment.runtime)
        shown = materialize(deployment, pipeline.purged_sessions)
    assert (shown["sessions"], shown["events"], shown["frames"], shown["failed_steps"]) == (1, 3, 2, 0)
    (record,) = shown["by_workspace"].records
    assert record.data == {
        "workspace_id": deployment.workspace_id,
        "kind": "hard_delete",
        "count": 1,
        "bytes": shown["bytes"],
    }


def test_a_run_without_an_ended_purge_keeps_the_figures_of_the_last_one(deployment: Deployment) -> None:
    hide_for_purge(deployment.runtime, session_id := add_old_session(deployment, days=1))
    while purge_row(deployment.runtime, session_id).step != "done":
        make_due(deployment.runtime)
        materialize(deployment, pipeline.purged_sessions)
    assert materialize(deployment, pipeline.purged_sessions)["sessions"] == 0
    event = deployment.instance.get_latest_materialization_event(pipeline.purged_sessions.key)
    assert event is not None and event.asset_materialization is not None
    assert event.asset_materialization.metadata["sessions"].value == 1


def test_a_run_beside_another_one_shows_nothing(deployment: Deployment) -> None:
    for lease, asset, name in (
        ("retention", pipeline.expired_records, "rows"),
        ("purges", pipeline.purged_sessions, "sessions"),
    ):
        with deployment.runtime.database.transaction(write=True) as db:
            assert hold_lease(db, lease, "other", ttl_ms=60_000) is not None
        assert materialize(deployment, asset)[name] == 0


def test_a_failure_fails_the_run_and_is_shown_with_its_workspace(
    deployment: Deployment, tmp_path: Path
) -> None:
    add_old_session(deployment, days=100, frames=1)
    expired = add_old_session(deployment, days=600)
    shutil.rmtree(tmp_path / "cold")
    (tmp_path / "cold").write_text("a file, where a folder should be")
    done = dg.materialize(
        [pipeline.expired_records],
        instance=deployment.instance,
        resources={"recorder": deployment.recorder},
        raise_on_error=False,
    )
    assert not done.success
    event = deployment.instance.get_latest_materialization_event(pipeline.expired_records.key)
    assert event is not None and event.asset_materialization is not None
    shown = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert (shown["failures"], shown["archived_sessions"], shown["expired_sessions"]) == (2, 0, 1)
    assert f"frames to archive of workspace {deployment.workspace_id}" in str(shown["failed"])
    assert purge_row(deployment.runtime, expired) is not None


def test_an_erasure_that_fails_fails_the_run_after_the_purges(deployment: Deployment) -> None:
    runtime, erasure_id = deployment.runtime, request_erasure_of_ada(deployment)
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(ErasureRow, erasure_id)
        row.subject = bytes(len(row.subject))
        db.add(row)
    session_id = add_old_session(deployment, days=1)
    hide_for_purge(runtime, session_id)
    done = dg.materialize(
        [pipeline.purged_sessions],
        instance=deployment.instance,
        resources={"recorder": deployment.recorder},
        raise_on_error=False,
    )
    assert not done.success
    assert purge_row(runtime, session_id).step == "files"


def test_the_sensor_starts_a_run_while_a_step_is_due(deployment: Deployment) -> None:
    assert pipeline.read_purge_sensor_state(deployment.runtime) == "no step is due"
    hide_for_purge(deployment.runtime, add_old_session(deployment, days=1))
    assert pipeline.read_purge_sensor_state(deployment.runtime) == "a step is due"
    with deployment.runtime.database.transaction(write=True) as db:
        assert hold_lease(db, PURGE_LEASE, "other", ttl_ms=60_000) is not None
    assert pipeline.read_purge_sensor_state(deployment.runtime) == "a run is at work"


def test_the_sensor_starts_no_run_for_a_step_that_is_due_later(deployment: Deployment) -> None:
    session_id = add_old_session(deployment, days=1)
    hide_for_purge(deployment.runtime, session_id)
    with deployment.runtime.database.transaction(write=True) as db:
        row = db.exec(select(PurgeRow).where(PurgeRow.session_id == session_id)).one()
        row.due_at = clock.now() + timedelta(minutes=5)
        db.add(row)
    assert pipeline.read_purge_sensor_state(deployment.runtime) == "no step is due"


def test_the_sensor_starts_a_run_while_an_erasure_waits(deployment: Deployment) -> None:
    request_erasure_of_ada(deployment)
    assert pipeline.read_purge_sensor_state(deployment.runtime) == "a step is due"


def test_tables_are_rewritten_only_in_the_quiet_hour(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, noon = deployment.runtime, clock.now().replace(hour=12)
    monkeypatch.setattr("recorder.clock.now", lambda: noon)
    for hour in range(24):
        runtime = replace(runtime, settings=replace(runtime.settings, quiet_hour=hour))
        expected = "no erasure waits" if hour == 12 else f"the quiet hour is {hour:02} UTC"
        assert pipeline.read_rewrite_sensor_state(runtime) == expected


def add_waiting_erasure(deployment: Deployment, *, due_by: datetime) -> None:
    """Add an erasure that waits for the rewrite of a table."""
    erasure = ErasureRow(
        id="era_1",
        workspace_id=deployment.workspace_id,
        mode="live",
        is_searched=True,
        subject_hash="",
        subject=b"",
        created_at=clock.now(),
        due_by=due_by,
        counts={},
        stale_tables="tags",
    )
    with deployment.runtime.database.transaction(write=True) as db:
        db.add(erasure)


@pytest.mark.parametrize(("days", "is_urgent"), [(8, False), (6, True), (-1, True)])
def test_tables_are_rewritten_at_any_hour_in_the_last_days_of_an_erasure(
    deployment: Deployment, days: int, is_urgent: bool
) -> None:
    # The service may run only in working hours.
    runtime, now = deployment.runtime, clock.now()
    runtime = replace(runtime, settings=replace(runtime.settings, quiet_hour=(now.hour + 12) % 24))
    add_waiting_erasure(deployment, due_by=now + timedelta(days=days))
    assert (pipeline.read_rewrite_sensor_state(runtime) == "erasures wait") is is_urgent


def test_tables_are_rewritten_in_the_quiet_hour_while_an_erasure_waits(deployment: Deployment) -> None:
    hour, runtime = clock.now().hour, deployment.runtime
    runtime = replace(runtime, settings=replace(runtime.settings, quiet_hour=hour))
    assert pipeline.read_rewrite_sensor_state(runtime) == "no erasure waits"
    add_waiting_erasure(deployment, due_by=clock.now() + timedelta(days=30))
    assert pipeline.read_rewrite_sensor_state(runtime) == "erasures wait"
    with runtime.database.transaction(write=True) as db:
        assert hold_lease(db, table_rewrites.LEASE, "other", ttl_ms=60_000) is not None
    assert pipeline.read_rewrite_sensor_state(runtime) == "a run is at work"
    assert materialize(deployment, pipeline.rewritten_tables)["tables"] == 0
