"""Connections of the database: what uses one when the database closes leaves none open. Design §2."""

import sqlite3
import threading
from pathlib import Path

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


def test_a_new_file_that_another_process_has_locked_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "recorder.db"
    other = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.3, other.execute, ("COMMIT",))
    release.start()
    database = Database(f"sqlite:///{file}")
    with database.transaction(write=False) as db:
        assert db.connection().execute(text("PRAGMA journal_mode")).scalar() == "wal"
    release.join()
    database.close()
    other.close()
