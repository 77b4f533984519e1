"""The schema: one tree of migrations that gives what the models say, on both engines. Design §4."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect, text
from sqlmodel import col, select

from recorder import clock
from recorder.errors import Unavailable
from recorder.masking.policies import read_workflow_policy
from recorder.models.governance import ErasureNodeRow, ErasureRow
from recorder.models.memory import SessionPathRow
from recorder.models.operations import SweepRow
from recorder.models.session import SessionRow
from recorder.models.tables import METADATA
from recorder.models.workflow import WorkflowRow
from recorder.storage.database import Database, UnknownSchema, read_newest_database_revision
from recorder.tenant import Tenant
from tests.support.databases import create_empty_database
from tests.support.deployment_processes import released_together


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of a database that holds nothing."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'recorder.db'}"
    return create_empty_database(request.getfixturevalue("postgres"))


def connect(url: str) -> Iterator[Connection]:
    """Open a bare connection, without anything of ours."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def migrate(url: str) -> None:
    """Bring a database up to date, as a starting process does."""
    database = Database(url)
    try:
        database.migrate()
    finally:
        database.close()


def test_migrations_give_what_the_models_say(empty_url: str) -> None:
    migrate(empty_url)
    for connection in connect(empty_url):
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True, "render_as_batch": True}
        )
        assert compare_metadata(context, METADATA) == []


def test_newest_revision_is_read_without_alembic(tmp_path: Path) -> None:
    migrate(url := f"sqlite:///{tmp_path / 'recorder.db'}")
    for connection in connect(url):
        assert (
            MigrationContext.configure(connection).get_current_revision() == read_newest_database_revision()
        )


def test_partial_indexes_are_partial_on_both_engines(empty_url: str) -> None:
    migrate(empty_url)
    declared = {
        index.name
        for table in METADATA.tables.values()
        for index in table.indexes
        if index.dialect_options["sqlite"]["where"] is not None
    }
    for connection in connect(empty_url):
        inspector = inspect(connection)
        created: set[Any] = {
            index["name"]
            for table in inspector.get_table_names()
            for index in inspector.get_indexes(table)
            if any(name.endswith("_where") for name in index.get("dialect_options", {}))
        }
    assert {"ix_sessions_to_seal", "ix_outbox_pending", "ix_seal_batches_open"} <= declared == created


def test_a_sweep_that_was_killed_before_the_migration_is_known_after_it(empty_url: str) -> None:
    database = Database(empty_url)
    database.migrate("2026.6.10")
    killed = text("""INSERT INTO leases VALUES ('seal-sweep', '["ses_1","ses_2"]', 0, 0)""")
    with database.transaction(write=True) as db:
        db.connection().execute(killed)
    database.migrate()
    with database.transaction(write=False) as db:
        assert set(db.exec(select(SweepRow.session_id))) == {"ses_1", "ses_2"}
        assert db.connection().execute(text("SELECT count(*) FROM leases")).scalar_one() == 0
    database.close()


def test_tags_are_counted_and_replaced_outcomes_are_deleted(empty_url: str) -> None:
    database = Database(empty_url)
    database.migrate("2026.6.13")
    path = (
        "INSERT INTO graph_session_paths (session_id, version, removed_version, workspace_id, mode, "
        "workflow, trace_key, outcome, duration_ms, started_at, sealed_at, seal_seq, step_ms) VALUES "
        "(:session, :version, :removed, 'w', 'live', 'checkout', 1, :outcome, 1, :at, :at, 1, '[1]')"
    )
    rows = [("ses_1", 1, 2, "error"), ("ses_1", 2, 4, "success"), ("ses_1", 4, None, "error")]
    rows += [("ses_2", 1, 3, "error"), ("ses_3", 3, None, "error")]
    at = clock.now()
    with database.transaction(write=True) as db:
        for session_id, version, removed, outcome in rows:
            values = {"session": session_id, "version": version, "removed": removed, "outcome": outcome}
            db.connection().execute(text(path), {**values, "at": at})
        for tag in ("tag_1", "tag_2"):
            add = "INSERT INTO tags (id, session_id, workspace_id, mode, name, t_ms, position, created_at) "
            db.connection().execute(
                text(f"{add} VALUES (:id, 'ses_1', 'w', 'live', 'seen', 0, 1, :at)"), {"id": tag, "at": at}
            )
        for session_id in ("ses_1", "ses_2"):
            session = SessionRow(
                id=session_id,
                workspace_id="w",
                mode="live",
                workflow="checkout",
                status="sealed",
                created_at=at,
            )
            values = session.model_dump(exclude={"tag_count"})
            table = inspect(db.connection()).get_columns("sessions")
            names = [column["name"] for column in table]
            insert = f"INSERT INTO sessions ({', '.join(names)}) VALUES ({', '.join(f':{n}' for n in names)})"
            db.connection().execute(text(insert), {name: values[name] for name in names})
    database.migrate()
    with database.transaction(write=False) as db:
        kept = db.exec(select(SessionPathRow.session_id, SessionPathRow.version)).all()
        counts = dict(db.exec(select(SessionRow.id, SessionRow.tag_count)).all())
    assert sorted(kept) == [("ses_1", 4), ("ses_2", 1), ("ses_3", 3)]
    assert counts == {"ses_1": 2, "ses_2": 0}
    database.close()


def test_policies_of_workflows_are_kept_and_those_that_are_json_null_become_null(empty_url: str) -> None:
    database = Database(empty_url)
    database.migrate("2026.6.13")
    row = "INSERT INTO workflows (workspace_id, mode, workflow, memory_graph, tags, masking, session_count, "
    row += "created_at, updated_at) VALUES ('wsp_1', 'live', :name, true, '[]', :masking, 0, :now, :now)"
    values = {"billing": '{"builtins":["email"]}', "json_null": "null", "unset": None}
    with database.transaction(write=True) as db:
        for name, masking in values.items():
            db.connection().execute(text(row), {"name": name, "masking": masking, "now": "2026-06-01 00:00"})
    database.migrate()
    with database.transaction(write=False) as db:
        masks = db.exec(select(WorkflowRow.workflow).where(col(WorkflowRow.masking).is_not(None)))
        assert list(masks) == ["billing"]
        assert read_workflow_policy(db, Tenant("wsp_1", "live"), "billing") == '{"builtins":["email"]}'
    database.close()


def test_the_nodes_of_open_erasures_become_rows(empty_url: str) -> None:
    database = Database(empty_url)
    database.migrate("2026.6.18")
    row = "INSERT INTO erasures (id, workspace_id, mode, status, subject_hash, subject, created_at, due_by, "
    row += (
        "is_searched, counts, held, nodes, exports) VALUES (:id, 'w', 'live', 'queued', 'h', :subject, :now, "
    )
    row += ":now, true, :counts, 0, :nodes, '[]')"
    open_erasures = {"era_1": '["live/checkout/1","live/checkout/2"]', "era_2": None}
    with database.transaction(write=True) as db:
        for erasure_id, nodes in open_erasures.items():
            values = {"id": erasure_id, "subject": b"", "now": clock.now(), "nodes": nodes}
            db.connection().execute(text(row), {**values, "counts": '{"sessions":1,"nodes":0}'})
    database.migrate()
    with database.transaction(write=False) as db:
        rows = db.exec(select(ErasureNodeRow.erasure_id, ErasureNodeRow.node_id)).all()
        counts = dict(db.exec(select(ErasureRow.id, ErasureRow.counts)).all())
    assert sorted(rows) == [("era_1", "live/checkout/1"), ("era_1", "live/checkout/2")]
    assert counts == {"era_1": {"sessions": 1, "nodes": 2}, "era_2": {"sessions": 1, "nodes": 0}}
    database.close()


def test_migrating_again_changes_nothing(empty_url: str) -> None:
    migrate(empty_url)
    migrate(empty_url)
    for connection in connect(empty_url):
        assert len(connection.execute(text("SELECT version_num FROM alembic_version")).all()) == 1


def test_processes_that_start_at_once_all_find_the_schema(empty_url: str) -> None:
    program = (
        "import sys; from recorder.storage.database import Database\n"
        f"database = Database({empty_url!r})\n"
        "print('ready', flush=True); sys.stdin.read(1)\n"
        "database.migrate()\n"
    )
    assert released_together(program, 3) == [(0, "")] * 3


def test_a_transaction_that_raises_leaves_nothing(empty_url: str) -> None:
    database = Database(empty_url)
    database.migrate()
    insert = text("INSERT INTO leases (name, owner, fence, expires_ms) VALUES ('a', 'b', 1, 1)")
    with pytest.raises(ZeroDivisionError), database.transaction(write=True) as db:
        db.connection().execute(insert)
        raise ZeroDivisionError
    with database.transaction(write=False) as db:
        assert db.connection().execute(text("SELECT count(*) FROM leases")).scalar_one() == 0
    database.close()


def test_a_read_sees_one_state_from_its_first_look_on(empty_url: str) -> None:
    database = Database(empty_url)
    database.migrate()
    count = text("SELECT count(*) FROM leases")
    with database.transaction(write=False) as reading:
        assert reading.connection().execute(count).scalar_one() == 0
        with database.transaction(write=True) as db:
            db.connection().execute(text("INSERT INTO leases VALUES ('a', 'b', 1, 1)"))
        assert reading.connection().execute(count).scalar_one() == 0
    database.close()


def test_an_acknowledged_commit_of_sqlite_was_synced(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'recorder.db'}")
    with database.transaction(write=False) as db:
        pragmas = {
            name: db.connection().execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "secure_delete")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1}
    database.close()


@pytest.mark.parametrize("url", ["sqlite:////nowhere/recorder.db", "postgresql://recorder@127.0.0.1:9/none"])
def test_a_database_that_is_away_is_unavailable(url: str) -> None:
    database = Database(url)
    with pytest.raises(Unavailable):
        database.ping()
    database.close()


def test_a_database_of_another_release_is_refused(empty_url: str) -> None:
    migrate(empty_url)
    for connection in connect(empty_url):
        connection.execute(text("UPDATE alembic_version SET version_num = '0005'"))
        connection.commit()
    with pytest.raises(UnknownSchema, match="another release"):
        migrate(empty_url)
