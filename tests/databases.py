"""Fresh databases, and what to do where a part of the machine is missing."""

import os
from typing import NoReturn

import psycopg
import pytest

from recorder.ids import new_id


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
