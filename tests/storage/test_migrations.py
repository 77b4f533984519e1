"""The schema: one tree of migrations that gives what the models say, on both engines. Design §4."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect, text
from sqlmodel import SQLModel, select

from recorder.errors import Unavailable
from recorder.models.operations import SweepRow
from recorder.storage.database import Database, UnknownSchema, read_newest_database_revision
from tests.support.databases import create_empty_database
from tests.support.deployment_processes import released_together


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
        assert compare_metadata(context, SQLModel.metadata) == []


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
        for table in SQLModel.metadata.tables.values()
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
