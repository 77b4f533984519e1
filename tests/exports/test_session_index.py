"""Index of the sessions of exports: many sessions, which take several statements and transactions."""

from functools import partial

from sqlmodel import Session as DbSession
from sqlmodel import func, insert, select

from recorder import clock
from recorder.exports.runner.session_index import (
    delete_export_index_rows,
    delete_session_index_rows,
    find_indexed_sessions,
    find_next_indexed_export,
    index_export_sessions,
)
from recorder.ids import new_id
from recorder.models.export import ExportSessionRow
from recorder.models.governance import PurgeRow
from recorder.storage.database import Database
from tests.support.query_plans import noted_statements, plan_of


def count_rows(database: Database, export_id: str) -> int:
    """Return how many sessions the index has of an export."""
    with database.transaction(write=False) as db:
        rows = select(func.count()).select_from(ExportSessionRow)
        return db.exec(rows.where(ExportSessionRow.export_id == export_id)).one()


def add_purges(db: DbSession, session_ids: list[str]) -> None:
    """Begin the purges of sessions."""
    purge = {
        "workspace_id": "wsp_1",
        "mode": "live",
        "workflow": "checkout",
        "cause": "deletion",
        "step": "exports",
        "requested_at": clock.now(),
        "due_at": clock.now(),
        "dates": [],
    }
    db.connection().execute(insert(PurgeRow), [{**purge, "session_id": each} for each in session_ids])


def test_many_sessions_of_an_export_are_found_and_deleted(database: Database) -> None:
    write = partial(database.transaction, write=True)
    first, second = sorted(new_id("exp") for _ in range(2))
    session_ids = sorted(new_id("ses") for _ in range(10_001))
    index_export_sessions(write, first, session_ids)
    index_export_sessions(write, second, session_ids[-1_001:-1_000])
    assert count_rows(database, first) == 10_001
    with database.transaction(write=True) as db:
        add_purges(db, session_ids[-1_001:])
        newest = find_next_indexed_export(db, session_ids[-1_001:])
        oldest = find_next_indexed_export(db, session_ids[-1_001:], before=second)
        assert find_next_indexed_export(db, session_ids[-1_001:], before=first) is None
        assert find_indexed_sessions(db, session_ids[-1_001:]) == set(session_ids[-1_001:])
    assert newest == (second, session_ids[-1_001:-1_000]) and oldest == (first, session_ids[-1_001:])
    with database.transaction(write=True) as db:
        delete_session_index_rows(db, first, session_ids[-1_001:])
    assert (count_rows(database, first), count_rows(database, second)) == (9_000, 1)
    delete_export_index_rows(write, first)
    assert (count_rows(database, first), count_rows(database, second)) == (0, 1)


def test_an_export_is_found_by_a_few_rows_of_an_index(database: Database) -> None:
    session_ids = sorted(new_id("ses") for _ in range(20))
    export_ids = sorted(new_id("exp") for _ in range(50))
    for export_id in export_ids:
        index_export_sessions(partial(database.transaction, write=True), export_id, session_ids)
    with database.transaction(write=True) as db:
        add_purges(db, session_ids)
    with database.transaction(write=False) as db, noted_statements() as noted:
        assert find_next_indexed_export(db, session_ids, before=export_ids[-1]) == (
            export_ids[-2],
            session_ids,
        )
    reads = [each for each in noted if "FROM export_sessions" in each[0]]
    with database.transaction(write=False) as db:
        rows = [len(db.connection().exec_driver_sql(*each).all()) for each in reads]
    assert rows == [1, 20]
    plan = plan_of(database, *reads[0])
    # One search for each session, not a read of all its exports.
    assert "purges" in plan and "SCAN export_sessions" not in plan and "Seq Scan" not in plan
    assert ("session_id=? AND export_id<?" if database.is_sqlite else "export_sessions_pkey") in plan
