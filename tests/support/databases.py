"""Fresh databases, empty or with our tables, and what to do where a part of the machine is missing.

The tables come from the migrations, which run once for each process and engine: what follows is a copy.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest

from recorder.data_folder import create_secret
from recorder.ids import new_id
from recorder.storage.database import Database

_FILE = "recorder.db"


def part_is_missing(reason: str) -> NoReturn:
    """Skip for want of a part of the machine; where all parts must be there, fail."""
    if os.environ.get("RECORDER_REQUIRE_PARTS") == "1":  # noqa: TID251
        pytest.fail(reason)
    pytest.skip(reason)


def find_program(name: str) -> str | None:
    """Return the path of a program; none is found where the machine counts as one without parts."""
    return None if are_parts_hidden() else shutil.which(name)


def are_parts_hidden() -> bool:
    """Return whether the machine counts as one on which nothing was installed for tests."""
    return os.environ.get("RECORDER_REQUIRE_PARTS") == "none"  # noqa: TID251


def create_empty_database(cluster: str) -> str:
    """Return the address of a new database in a cluster that holds nothing."""
    return _create(cluster)


def create_database(cluster: str) -> str:
    """Return the address of a new database in a cluster, with the service's tables."""
    return _create(cluster, template=_template_in(cluster))


def create_file(folder: Path) -> str:
    """Return the address of a deployment's SQLite database in this folder, with the service's tables."""
    file = folder / _FILE
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        create_secret(folder)  # no start creates one beside a database
        file.write_bytes(_template_file())
    return f"sqlite:///{file}"


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    """Yield a database of either engine with the service's tables; the tests of a module share it."""
    opened = Database(database_url)
    yield opened
    opened.close()


def _create(cluster: str, *, template: str = "template1") -> str:
    name = new_id("wsp")
    with psycopg.connect(f"{cluster}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return f"{cluster}/{name}"


@cache
def _template_in(cluster: str) -> str:
    """Return the name of a database with our tables and no connection, so that it can be copied."""
    url = _create(cluster)
    _migrate(url)
    return url.rpartition("/")[2]


@cache
def _template_file() -> bytes:
    """Return a database with the service's tables; without open connections, and so without a log."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / _FILE
        _migrate(f"sqlite:///{file}")
        assert [path.name for path in file.parent.iterdir()] == [_FILE]
        return file.read_bytes()


def _migrate(url: str) -> None:
    database = Database(url)
    database.migrate()
    database.close()
