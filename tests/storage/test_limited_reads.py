"""Reads with a time limit: what takes longer is ended, and nothing else is. Contract §1 (lists)."""

import pytest
from sqlalchemy import text

from recorder.errors import ReadTooLong, Unavailable
from recorder.storage.database import Database
from recorder.storage.limited_reads import check_read_time, limited_read, without_time_limit

#: It would count for a quarter of an hour.
ENDLESS = text(
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 3000000000) "
    "SELECT count(*) FROM n"
)
SHORT = text("SELECT 1")


def test_a_statement_that_takes_too_long_is_ended(database: Database) -> None:
    with pytest.raises(ReadTooLong) as raised, limited_read(database, limit_s=0.2) as db:
        db.connection().execute(ENDLESS)
    assert raised.value.code == "limit_reached"
    assert "0.2 s" in str(raised.value) and "`since` and `until`" in str(raised.value)


def test_the_next_transaction_has_no_limit(database: Database) -> None:
    for _ in range(3):
        with pytest.raises(ReadTooLong), limited_read(database, limit_s=0.05) as db:
            db.connection().execute(ENDLESS)
        with database.transaction(write=False) as db:
            if database.is_sqlite:
                work = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 200000) "
                assert db.connection().execute(text(work + "SELECT count(*) FROM n")).scalar_one() == 200_000
            else:
                assert db.connection().execute(text("SHOW statement_timeout")).scalar_one() == "0"


def test_short_statements_pass(database: Database) -> None:
    with limited_read(database, limit_s=5.0) as db:
        assert [db.connection().execute(SHORT).scalar_one() for _ in range(100)] == [1] * 100
        check_read_time(db)


def test_the_time_of_many_statements_is_checked_between_them(database: Database) -> None:
    with limited_read(database, limit_s=0.0001) as db:
        db.connection().execute(SHORT)
        with pytest.raises(ReadTooLong):
            while True:
                check_read_time(db)
    with database.transaction(write=False) as db:
        check_read_time(db)


def test_other_errors_of_the_database_stay_what_they_are(database: Database) -> None:
    with pytest.raises(Unavailable), limited_read(database, limit_s=5.0):
        raise Unavailable("The database")
    with pytest.raises(ZeroDivisionError), limited_read(database, limit_s=5.0):
        raise ZeroDivisionError


def test_the_time_stands_still_for_what_has_a_size_of_its_own(database: Database) -> None:
    work = text(
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 400000) "
        "SELECT count(*) FROM n"
    )
    with limited_read(database, limit_s=0.2, instructions=1_000) as db:
        with without_time_limit(db):
            for _ in range(6):
                assert db.connection().execute(work).scalar_one() == 400_000
        check_read_time(db)
    with pytest.raises(ReadTooLong), limited_read(database, limit_s=0.2, instructions=1_000) as db:
        with without_time_limit(db):
            db.connection().execute(work)
        db.connection().execute(ENDLESS)


def test_a_read_without_a_limit_has_no_time_to_stop(database: Database) -> None:
    with database.transaction(write=False) as db, without_time_limit(db):
        assert db.connection().execute(SHORT).scalar_one() == 1
