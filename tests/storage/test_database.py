"""Connections of the database: what uses one when the database closes leaves none open. Design §2."""

import sqlite3

import pytest
from sqlalchemy import text

from recorder.storage.database import Database


def test_a_connection_in_use_is_closed_when_it_is_returned_to_a_closed_database(database_url: str) -> None:
    database = Database(database_url)
    with database.transaction(write=False) as db:
        connection = db.connection().connection.driver_connection
        assert connection is not None
        database.close()
        assert db.connection().execute(text("SELECT 1")).scalar() == 1
    if database.is_sqlite:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    else:
        assert connection.closed
