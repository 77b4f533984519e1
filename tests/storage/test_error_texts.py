"""Texts of database errors, which logs and Dagster keep."""

import traceback

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from recorder.errors import RecorderError
from recorder.storage.database import Database

CANARY = "canary-7f3a"


def test_the_traceback_of_a_failed_statement_holds_no_parameters(database: Database) -> None:
    with (
        pytest.raises((SQLAlchemyError, RecorderError)) as caught,
        database.transaction(write=True) as db,
    ):
        db.connection().execute(text("SELECT :value FROM no_such_table"), {"value": CANARY})
    written = "".join(traceback.format_exception(caught.value))
    assert "no_such_table" in written
    assert CANARY not in written
