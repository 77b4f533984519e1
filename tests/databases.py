"""Fresh databases, empty or with our tables, and what to do where a part of the machine is missing."""

import os
from collections.abc import Iterator
from typing import NoReturn

import psycopg
import pytest

from recorder.ids import new_id
from recorder.storage.database import Database


def part_is_missing(reason: str) -> NoReturn:
    """Skip for want of a part of the machine; where all parts must be there, fail."""
    if os.environ.get("RECORDER_REQUIRE_PARTS") == "1":  # noqa: TID251
        pytest.fail(reason)
    pytest.skip(reason)


def create_database(cluster: str) -> str:
    """Address of a new empty database in a cluster."""
    name = new_id("wsp")
    with psycopg.connect(f"{cluster}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{cluster}/{name}"


@pytest.fixture(scope="module")
def database(database_url: str) -> Iterator[Database]:
    """An empty database of either engine."""
    opened = Database(database_url)
    opened.migrate()
    yield opened
    opened.close()
