"""The schema: one tree of migrations that gives what the models say, on both engines. Design §4."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Column, Connection, MetaData, Table, create_engine, insert, inspect, text
from sqlmodel import SQLModel, select

import recorder.models
import recorder.storage
from recorder.errors import Unavailable
from recorder.memory.building.nodes import GraphScope
from recorder.memory.queries.columns import read_columns
from recorder.memory.storing.checks import check_graph
from recorder.memory.storing.rebuilds import rebuild_graph
from recorder.models.session import SessionRow
from recorder.storage.database import Database
from tests.databases import create_empty_database
from tests.processes import released_together


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of a database that holds nothing."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'recorder.db'}"
    return create_empty_database(request.getfixturevalue("postgres"))


def connect(url: str) -> Iterator[Connection]:
    """A bare connection, without anything of ours."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def migrate(url: str) -> None:
    """Bring a database up to date, as a starting process does."""
    database = Database(url)
    database.migrate()
    database.close()


def upgrade(connection: Connection, revision: str) -> None:
    """Bring a database to one version of the schema."""
    config = Config()
    config.set_main_option("script_location", str(Path(recorder.storage.__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def test_migrations_give_what_the_models_say(empty_url: str) -> None:
    migrate(empty_url)
    for connection in connect(empty_url):
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True, "render_as_batch": True}
        )
        assert compare_metadata(context, SQLModel.metadata) == []


def test_partial_indexes_are_partial_on_both_engines(empty_url: str) -> None:
    migrate(empty_url)
    declared = {
        index.name
        for table in SQLModel.metadata.tables.values()
        for index in table.indexes
        if index.dialect_options["sqlite"]["where"] is not None
    }
    for connection in connect(empty_url):
        inspector = inspect(connection)
        found: set[Any] = {
            index["name"]
            for table in inspector.get_table_names()
            for index in inspector.get_indexes(table)
            if any(name.endswith("_where") for name in index.get("dialect_options", {}))
        }
    assert {"ix_sessions_to_seal", "ix_outbox_pending", "ix_seal_batches_open"} <= declared == found


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
        told = {
            name: db.connection().execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "secure_delete")
        }
    assert told == {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1}
    database.close()


@pytest.mark.parametrize("url", ["sqlite:////nowhere/recorder.db", "postgresql://recorder@127.0.0.1:9/none"])
def test_a_database_that_is_away_is_unavailable(url: str) -> None:
    database = Database(url)
    with pytest.raises(Unavailable):
        database.ping()
    database.close()


def test_sessions_of_the_first_release_get_their_end(empty_url: str) -> None:
    created = datetime(2026, 11, 1, 8, tzinfo=UTC)
    deleted = created + timedelta(days=1)
    rows = {
        "ses_live": ("live", None, None),
        "ses_deleted": ("live", deleted, deleted + timedelta(days=30)),
        "ses_test": ("test", None, created + timedelta(days=7)),
        "ses_test_deleted": ("test", deleted, created + timedelta(days=7)),
    }
    for connection in connect(empty_url):
        upgrade(connection, "0001")
        sessions = Table("sessions", MetaData(), autoload_with=connection)
        fixed = {"workspace_id": "wsp", "workflow": "checkout", "status": "stopped", "created_at": created}
        fixed |= {"is_import": False, "is_hot": True, "has_error_event": False}
        needed = {column.name for column in sessions.columns if not column.nullable}
        zeros = dict.fromkeys(needed - {*fixed, "id", "mode"}, 0)
        for session_id, (mode, deleted_at, _) in rows.items():
            values = {"id": session_id, "mode": mode, "deleted_at": deleted_at}
            connection.execute(insert(sessions).values(**fixed, **zeros, **values))
        upgrade(connection, "head")
        connection.commit()
    database = Database(empty_url)
    with database.transaction(write=False) as db:
        found = {row.id: row.purge_after for row in db.exec(select(SessionRow))}
    database.close()
    assert found == {session_id: end for session_id, (_, _, end) in rows.items()}


def test_sessions_indexed_by_the_release_before_keep_their_paths(empty_url: str) -> None:
    """That release knew the nodes of a session, not its micro-states: exemplars stand for them."""
    place = {"workspace_id": "wsp", "mode": "live", "workflow": "checkout"}
    moment = datetime(2026, 11, 1, 8, tzinfo=UTC)
    made = {**place, "created_version": 1}
    rows: dict[str, list[dict[str, Any]]] = {
        "workflows": [{**place, "created_at": moment, "updated_at": moment}],
        "graph_versions": [{**place, "version": 1, "kind": "sessions", "writer": "a", "created_at": moment}],
        "graph_nodes": [
            {**made, "number": number, "act": number, "node_id": f"nde_{number}", "micro_key": micro_key}
            for number, micro_key in enumerate((-7, 7))
        ],
        "graph_micro_states": [
            {**made, "micro_key": micro_key, "node": node} for micro_key, node in ((-7, 0), (7, 1), (8, 1))
        ],
        "graph_variants": [{**made, "variant_key": 5, "nodes": [0, 1, 0], "path": 0, "n": 2}],
        "graph_paths": [{**made, "number": 0, "path_id": "pth_a", "leader": 5, "nodes": [0, 1, 0]}],
        "graph_session_paths": [
            {
                **place,
                "session_id": session_id,
                "version": 1,
                "path_id": "pth_a",
                "variant_key": 5,
                "outcome": "success",
                "duration_ms": 60,
                "started_at": moment,
                "sealed_at": moment,
                "edge_ms": [10, 20, 30, 0],
            }
            for session_id in ("ses_a", "ses_b")
        ],
    }
    for connection in connect(empty_url):
        upgrade(connection, "0002")
        for name, values in rows.items():
            table = Table(name, MetaData(), autoload_with=connection)
            for row in values:
                missing = {c.name: _zero(c) for c in table.columns if not c.nullable and c.name not in row}
                connection.execute(insert(table).values(**missing, **row))
        upgrade(connection, "head")
        connection.commit()
    database = Database(empty_url)
    with database.transaction(write=False) as db:
        columns = read_columns(db, GraphScope(**place), 1)
        assert check_graph(db, GraphScope(**place)).miscounted == []
    report = rebuild_graph(database, GraphScope(**place), "anchored")
    database.close()
    assert report is not None and (report.nodes, report.paths, report.sessions) == (2, 1, 2)
    assert [columns.paths[number].path_id for number in columns.path] == ["pth_a", "pth_a"]
    assert columns.step_ms.tolist() == [10, 20, 30, 0] * 2
    assert columns.trace_entry.tolist() == [0, 1, 2]


def _zero(column: Column[Any]) -> Any:
    """A value for a column that plays no part."""
    if isinstance(column.type, sa.LargeBinary):
        return b""
    if isinstance(column.type, sa.JSON):
        return {}
    if isinstance(column.type, sa.Boolean):
        return True
    return "" if isinstance(column.type, sa.String) else 0
