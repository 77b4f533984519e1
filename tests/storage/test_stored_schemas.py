"""Databases of earlier schemas: each opens, migrates to the head and reads its rows back. Design §4.

`fixtures/schema_<revision>/` holds a dump of each engine with rows of the same kinds: a workspace with a key,
a webhook and its audit log; a workflow with a graph of one session; a sealed, a stopped and a recording
session with events, a frame and tags; a queued export. Later ones add a hold, purges, an open erasure,
replays and a recovery. Add a folder for a later schema; change none.
"""

from datetime import timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlmodel import col, select

from recorder.access.key_admin import list_keys
from recorder.audit.verify import verify_audit
from recorder.exports.requests.export_operations import list_exports
from recorder.governance.erasures import describe_erasure
from recorder.governance.holds import list_held_sessions
from recorder.governance.purging.purge_runs import find_next_due_time
from recorder.memory.queries.common_paths import list_paths
from recorder.models.frame import FrameRow
from recorder.models.governance import ErasureNodeRow, ErasureRow, PurgeRow
from recorder.models.operations import SweepRow
from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow
from recorder.models.session import SessionCreate, SessionRow
from recorder.models.tables import METADATA
from recorder.models.workspace import WorkspaceRow
from recorder.recording.session_list import SessionFilter, list_sessions
from recorder.recording.sessions import create_session
from recorder.recording.stored_events import read_stored_events
from recorder.recording.tags import list_tags
from recorder.recording.workflows import get_workflow
from recorder.replay_service.requests.recoveries import recovery_to_wire
from recorder.replay_service.requests.replay_and_recovery_rows import list_replays_or_recoveries
from recorder.replay_service.requests.replay_wire_objects import replay_to_wire
from recorder.replay_service.requests.replays import list_stored_replay_steps
from recorder.storage.database import open_database
from recorder.tenant import Tenant
from recorder.webhooks.subscriptions import list_webhooks
from tests.support.sealed_sessions import make_settings
from tests.support.stored_schemas import FIRST_SCHEMA, FOLDER, SCHEMAS, load_schema_database, load_schema_file


@pytest.fixture(params=["sqlite", "postgresql"])
def loaded_url(request: pytest.FixtureRequest, schema: str, tmp_path: Path) -> str:
    """Return the address of a database that was loaded from a dump."""
    if request.param == "sqlite":
        return load_schema_file(schema, tmp_path)
    return load_schema_database(schema, request.getfixturevalue("postgres"))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_database_of_an_earlier_schema_migrates_and_reads_its_rows_back(
    loaded_url: str, tmp_path: Path
) -> None:
    database = open_database(make_settings(tmp_path, database_url=loaded_url), create=False)
    with database.transaction(write=False) as db:
        context = MigrationContext.configure(
            db.connection(),
            opts={"compare_type": True, "compare_server_default": True, "render_as_batch": True},
        )
        assert compare_metadata(context, METADATA) == []
        workspace = db.exec(select(WorkspaceRow)).one()
        tenant = Tenant(workspace.id, "live")
        assert (workspace.name, [key.label for key in list_keys(db, tenant).items]) == ("acme", ["first key"])
        sessions = list_sessions(db, tenant, SessionFilter(), before_id=None, limit=10).items
        assert [(session.workflow, session.status) for session in sessions] == [
            ("login", "recording"),
            ("checkout", "stopped"),
            ("checkout", "sealed"),
        ]
        checkout = sessions[1]
        assert (checkout.metadata, checkout.outcome, checkout.event_count) == ({"case": "A-1"}, "success", 2)
        events, _ = read_stored_events(db, checkout.id)
        assert [(event.t_ms, event.type) for event in events] == [(0, "click"), (5, "fill")]
        assert events[1].id == "evt_second"
        frame = db.exec(select(FrameRow).where(col(FrameRow.session_id) == checkout.id)).one()
        assert (frame.frame_id, frame.t_ms, frame.width, frame.height) == ("frm_first", 3, 8, 8)
        assert [tag.name for tag in list_tags(db, checkout.id, after=None, limit=5).items] == ["done"]
        (path,) = list_paths(db, tenant=tenant, workflow="checkout", limit=5)
        assert (path.session_count, path.frequency) == (1, 1.0)
        assert get_workflow(db, tenant, "checkout").tags == ["shop"]
        (webhook,) = list_webhooks(db, tenant, before_id=None, limit=5).items
        assert (webhook.url, webhook.events) == ("https://hooks.invalid/in", ["session.sealed"])
        (export,) = list_exports(
            db, tenant, workflows=("checkout",), status=None, before_id=None, limit=5
        ).items
        assert (export.status, export.tag) == ("queued", "v1")
    report = verify_audit(database)
    assert report.is_valid
    assert [chain.entries for chain in report.chains] == [3]
    with database.transaction(write=True) as db:
        fresh = create_session(db, tenant, SessionCreate(workflow="checkout", start=True))
    with database.transaction(write=False) as db:
        later = list_sessions(db, tenant, SessionFilter(), before_id=None, limit=10).items
        assert [session.id for session in later] == [fresh.id, *(session.id for session in sessions)]
    database.close()


@pytest.mark.parametrize("schema", [schema for schema in SCHEMAS if schema != FIRST_SCHEMA])
def test_rows_of_governance_and_replays_of_an_earlier_schema_are_read_back(
    loaded_url: str, schema: str, tmp_path: Path
) -> None:
    database = open_database(make_settings(tmp_path, database_url=loaded_url), create=False)
    with database.transaction(write=False) as db:
        workspace = db.exec(select(WorkspaceRow)).one()
        tenant = Tenant(workspace.id, "live")
        sealed, stopped = (
            db.exec(select(SessionRow).where(SessionRow.status == status)).one()
            for status in ("sealed", "stopped")
        )
        assert {sealed.tag_count, stopped.tag_count} == {1}
        assert stopped.id in set(db.exec(select(SweepRow.session_id)))
        assert list_held_sessions(db, workspace.id, [sealed.id, "ses_other"]) == {sealed.id}
        erasure = db.exec(select(ErasureRow)).one()
        shown = describe_erasure(erasure)
        assert (shown.status, shown.counts["sessions"], shown.counts["nodes"]) == ("running", 1, 2)
        assert shown.counts["exports"] == 1 and shown.due_by - shown.created_at == timedelta(days=30)
        nodes = db.exec(select(ErasureNodeRow.node_id).order_by(ErasureNodeRow.node_id)).all()
        assert nodes == ["live/checkout/0", "live/checkout/1"]
        purge = db.exec(select(PurgeRow).where(PurgeRow.erasure_id == erasure.id)).one()
        assert (purge.step, purge.dates, purge.event_bytes) == ("lake", ["2026-11-23"], 63)
        assert find_next_due_time(db) == purge.due_at
        (recovery,) = list_replays_or_recoveries(
            db, RecoveryRow, tenant, filters={}, workflows=[], before_id=None, limit=5
        ).items
        wire = recovery_to_wire(recovery)
        assert (wire.status, wire.inputs, recovery.attempt_is_open) == ("started", ["password"], True)
        replays = db.exec(select(ReplayRow).order_by(ReplayRow.id)).all()
        dry, live = map(replay_to_wire, replays[:2])
        assert (dry.sandbox, dry.status, dry.summary) == ("dry", "completed", {"matched": 2})
        assert (live.sandbox, live.status, [live.id]) == ("live", "queued", wire.replay_ids)
        steps = list_stored_replay_steps(db, replays[0], after=None, limit=5).items
        assert [(step.event_id, step.similarity) for step in steps][1] == ("evt_second", 0.5)
        (webhook,) = list_webhooks(db, tenant, before_id=None, limit=5).items
        skipped = webhook.skipped_events
        assert (skipped.count if skipped else 0) == (3 if schema == "schema_2026_6_18" else 0)
    database.close()


def test_there_is_a_dump_of_both_engines_for_each_schema() -> None:
    assert SCHEMAS
    for schema in SCHEMAS:
        assert {file.name for file in (FOLDER / schema).iterdir()} == {"postgresql.sql", "sqlite.sql"}
