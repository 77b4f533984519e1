"""Inserts of rows that may exist already, on both engines."""

import threading
from collections.abc import Iterator

import pytest
from sqlmodel import col

from recorder.ids import new_id
from recorder.models.operations import LeaseRow
from recorder.storage.database import Database
from recorder.storage.upsert import insert_if_missing, insert_missing_rows, insert_or_update


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


def lease(name: str, *, fence: int) -> dict[str, object]:
    return {"name": name, "owner": "", "fence": fence, "expires_ms": 0}


def read_fence(database: Database, name: str) -> int:
    with database.transaction(write=False) as db:
        return db.get_one(LeaseRow, name).fence


def test_a_row_that_exists_is_left_alone(database: Database) -> None:
    name = new_id("evt")
    with database.transaction(write=True) as db:
        assert insert_if_missing(db, LeaseRow, lease(name, fence=1))
        assert not insert_if_missing(db, LeaseRow, lease(name, fence=2))
    assert read_fence(database, name) == 1


def test_missing_rows_are_inserted_and_counted(database: Database) -> None:
    names = sorted(new_id("evt") for _ in range(1_200))
    with database.transaction(write=True) as db:
        assert insert_missing_rows(db, LeaseRow, []) == 0
        assert insert_missing_rows(db, LeaseRow, [lease(names[0], fence=1)]) == 1
        assert insert_missing_rows(db, LeaseRow, [lease(name, fence=2) for name in names]) == 1_199
        assert insert_missing_rows(db, LeaseRow, [lease(name, fence=3) for name in names]) == 0
    assert (read_fence(database, names[0]), read_fence(database, names[-1])) == (1, 2)


def test_a_row_that_exists_is_updated_from_its_own_columns(database: Database) -> None:
    name = new_id("evt")
    added = {"fence": col(LeaseRow.fence) + 5}
    for expected in (5, 10, 15):
        with database.transaction(write=True) as db:
            row = insert_or_update(db, LeaseRow, lease(name, fence=5), update=added)
        assert row is not None
        assert (row.name, row.fence) == (name, expected)
    assert read_fence(database, name) == 15


def test_a_row_that_does_not_meet_the_condition_stays(database: Database) -> None:
    name = new_id("evt")
    is_low = col(LeaseRow.fence) < 3
    rows = []
    for fence in (1, 7, 9):
        with database.transaction(write=True) as db:
            values = lease(name, fence=fence)
            rows.append(insert_or_update(db, LeaseRow, values, update={"fence": fence}, where=is_low))
    assert [row and row.fence for row in rows] == [1, 7, None]
    assert read_fence(database, name) == 7


def test_every_one_of_many_additions_at_once_counts(database: Database) -> None:
    name = new_id("evt")

    def add() -> None:
        for _ in range(5):
            with database.transaction(write=True) as db:
                update = {"fence": col(LeaseRow.fence) + 1}
                insert_or_update(db, LeaseRow, lease(name, fence=1), update=update)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_fence(database, name) == 20
