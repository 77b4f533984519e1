"""Databases of earlier schemas: each opens, migrates to the head and reads its rows back. Design §4.

`fixtures/schema_<revision>/` holds a dump of each engine with rows of the same kinds: a workspace with a key,
a webhook and its audit log; a workflow with a graph of one session; a sealed, a stopped and a recording
session with events, a frame and tags; a queued export. Add a folder for a later schema; change none.
"""

import sqlite3
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlmodel import col, select

from recorder.access.key_admin import list_keys
from recorder.audit.verify import verify_audit
from recorder.exports.requests.queue import list_exports
from recorder.memory.queries.common_paths import list_paths
from recorder.models.frame import FrameRow
from recorder.models.session import SessionCreate
from recorder.models.tables import METADATA
from recorder.models.workspace import WorkspaceRow
from recorder.recording.session_list import SessionFilter, list_sessions
from recorder.recording.sessions import create_session
from recorder.recording.stored_events import read_stored_events
from recorder.recording.tags import list_tags
from recorder.recording.workflows import get_workflow
from recorder.storage.database import open_database
from recorder.tenant import Tenant
from recorder.webhooks.subscriptions import list_webhooks
from tests.support.databases import create_empty_database
from tests.support.sealed_sessions import make_settings

FIXTURES = Path(__file__).parent / "fixtures"
SCHEMAS = sorted(folder.name for folder in FIXTURES.glob("schema_*"))


@pytest.fixture(params=["sqlite", "postgresql"])
def loaded_url(request: pytest.FixtureRequest, schema: str, tmp_path: Path) -> str:
    """Return the address of a database that was loaded from a dump."""
    dump = (FIXTURES / schema / f"{request.param}.sql").read_text()
    if request.param == "sqlite":
        with sqlite3.connect(tmp_path / "recorder.db") as connection:
            connection.executescript(dump)
        connection.close()
        return f"sqlite:///{tmp_path / 'recorder.db'}"
    url = create_empty_database(request.getfixturevalue("postgres"))
    with psycopg.connect(url) as connection_of_postgres:
        connection_of_postgres.execute(dump.encode())
    return url


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


def test_there_is_a_dump_of_both_engines_for_each_schema() -> None:
    assert SCHEMAS
    for schema in SCHEMAS:
        assert {file.name for file in (FIXTURES / schema).iterdir()} == {"postgresql.sql", "sqlite.sql"}
