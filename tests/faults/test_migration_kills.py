"""kill -9 of a migration at any moment: the schema is the old one or the new one, and the next one ends it.

`RECORDER_FAULT_MIGRATION_KILLS` gives the number of kills on each engine; `make test-faults` does a few. The
moments follow `RECORDER_FAULT_SEED`, which a failure names. The dumps of earlier schemas take turns.
"""

import os
import random
import signal
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import MetaData, create_engine, inspect, select

from tests.faults.results import add_result, count_done
from tests.faults.test_export_kills import SEED, Lives, lives_of
from tests.support.stored_schemas import FIRST_SCHEMA, SCHEMAS, load_schema_database, load_schema_file
from tests.support.waiting import wait_for

KILLS = int(os.environ.get("RECORDER_FAULT_MIGRATION_KILLS", "3"))  # noqa: TID251
_KILLS_OF_ONE = 3
_PATIENCE_S = 120.0

#: Columns, keys and indexes of each table, and its rows.
Content = dict[str, dict[str, list[str]]]


@pytest.fixture(params=["sqlite", "postgresql"])
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that loads a dump into a fresh database of an engine and returns its address."""
    if request.param == "postgresql":
        cluster = request.getfixturevalue("postgres")
        return lambda schema: load_schema_database(schema, cluster)
    folders = (tmp_path / str(number) for number in range(1_000_000))

    def load_file(schema: str) -> str:
        folder = next(folders)
        folder.mkdir()
        return load_schema_file(schema, folder)

    return load_file


def test_a_killed_migration_is_ended_by_the_next_one(load: Callable[[str], str], tmp_path: Path) -> None:
    engine = "SQLite" if load(FIRST_SCHEMA).startswith("sqlite") else "PostgreSQL"
    name = f"migration kills on {engine}"
    done = count_done(name)
    missing = max(KILLS - done, 0)
    chance = random.Random(SEED + done)
    kills, number = 0, 0
    with lives_of(tmp_path, "", launcher="migration_launcher") as lives:
        undisturbed: dict[str, tuple[Content, Content, float]] = {}
        for schema in cycle([FIRST_SCHEMA, *(each for each in SCHEMAS if each != FIRST_SCHEMA)]):
            if kills >= missing and number:
                break
            if schema not in undisturbed:
                undisturbed[schema] = migrate_undisturbed(lives, load(schema))
            before, after, whole = undisturbed[schema]
            number += 1
            url = load(schema)
            most = min(missing - kills, _KILLS_OF_ONE)
            for left in range(most, -1, -1):
                life = lives.start(url)
                if lives.ends_within(chance.uniform(0, 1.1 * whole) if left else _PATIENCE_S):
                    break
                assert left, f"seed {SEED}: nothing goes on"
                os.kill(life, signal.SIGKILL)
                kills += 1
                wait_until_alone(url)
                assert read_content(url) in (before, after), f"seed {SEED}: {schema} is half migrated"
            assert read_content(url) == after, f"seed {SEED}: {schema}"
    print(f"{kills} kills, {number} migrations")
    add_result(name, kills, seed=SEED, migrations=number)


def migrate_undisturbed(lives: Lives, url: str) -> tuple[Content, Content, float]:
    """Migrate a database; return its content before and after, and the seconds."""
    before = read_content(url)
    _, seconds = lives.kill_until_ended(url, random.Random(), 0.0, most=0)
    return before, read_content(url), seconds


def wait_until_alone(url: str) -> None:
    """Wait until PostgreSQL has noticed that a client is dead; its transaction goes on until then."""
    if url.startswith("sqlite"):
        return
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    with psycopg.connect(url, autocommit=True) as connection:
        database = (url.rpartition("/")[2],)
        wait_for(lambda: connection.execute(others, database).fetchone() == (0,))


def read_content(url: str) -> Content:
    """Return the schema and the rows of a database."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    tables, content = MetaData(), Content()
    with engine.connect() as connection:
        tables.reflect(connection)
        inspector = inspect(connection)
        for table in tables.sorted_tables:
            name = table.name
            described: dict[str, Any] = {
                "columns": inspector.get_columns(name),
                "primary key": [inspector.get_pk_constraint(name)],
                "unique": inspector.get_unique_constraints(name),
                "indexes": [describe_index(index) for index in inspector.get_indexes(name)],
                "rows": connection.execute(select(table)).all(),
            }
            content[name] = {part: sorted(map(repr, items)) for part, items in described.items()}
    engine.dispose()
    return content


def describe_index(index: Any) -> dict[str, Any]:
    """Return an index with the text of its condition, whose object is another one in each read."""
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return {**index, "dialect_options": options}
