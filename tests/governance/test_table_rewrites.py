"""Rewrites of PostgreSQL's tables and SQLite's file before an erasure ends. Spec §4.5; contract §7."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from recorder import clock
from recorder.errors import Unavailable
from recorder.governance.content_inventory import list_inventory_tables_to_rewrite
from recorder.governance.erasure_runs import has_unfinished_erasures, run_erasures
from recorder.governance.overdue import count_overdue
from recorder.governance.requested_removals import run_removals
from recorder.governance.retention import run_retention
from recorder.governance.table_rewrites import (
    LEASE,
    has_erasures_awaiting_rewrite,
    rewrite_small_file,
    rewrite_tables,
)
from recorder.models.governance import ErasureRow
from recorder.runtime import Runtime
from recorder.storage.database import Database
from recorder.storage.leases import hold_lease
from tests.governance.test_erasure import ADDRESS
from tests.support.factories import Caller
from tests.support.purges import count_hits, finish_purges, new_word, recorded_canary
from tests.support.recorded_sessions import execute


def purge_subject(caller: Caller) -> tuple[str, str]:
    """Erase a subject up to the rewrite of tables; return the erasure's id and the subject."""
    subject = recorded_canary(caller, is_sealed=False).word
    erasure_id: str = caller.post(ADDRESS, {"subject": subject, "scope": "all"}).json()["id"]
    runtime = caller.service.runtime
    run_erasures(runtime, "tests")
    finish_purges(runtime)
    run_erasures(runtime, "tests")
    return erasure_id, subject


def read_erasure(caller: Caller, erasure_id: str) -> dict[str, Any]:
    """Return an erasure as the API shows it."""
    output: dict[str, Any] = caller.get(f"{ADDRESS}/{erasure_id}").json()
    return output


@contextmanager
def transaction_beside(runtime: Runtime, *statements: str) -> Iterator[None]:
    """Hold a transaction open on a connection of its own."""
    with closing(psycopg.connect(runtime.database.url)) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        yield


#: SQLite has no tables to rewrite, but its file.
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def put_into_a_gap(runtime: Runtime) -> str:
    """Put a word where SQLite leaves copies of moved rows: between the cells of a page and their addresses.

    Another process writes: whoever closes such a file loses all locks of its process on it.
    """
    word, path = new_word(), runtime.database.url.removeprefix("sqlite:///")
    assert runtime.database.truncate_log()
    with runtime.database.transaction(write=False) as db:
        statement = "SELECT rootpage FROM sqlite_master WHERE name = 'export_recipes'"
        page = db.connection().exec_driver_sql(statement).scalar_one()
        size = db.connection().exec_driver_sql("PRAGMA page_size").scalar_one()
    script = f"f = open({path!r}, 'r+b'); f.seek({(page - 1) * size + 500}); f.write({word!r}.encode())"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert count_hits(runtime, word)
    return word


def test_an_erasure_is_completed_once_its_tables_were_rewritten(caller: Caller) -> None:
    runtime = caller.service.runtime
    erasure_id, _ = purge_subject(caller)
    waiting = read_erasure(caller, erasure_id)
    with runtime.database.transaction(write=False) as db:
        assert has_erasures_awaiting_rewrite(db)
        assert not has_unfinished_erasures(db), "the sensor of purges would start runs for nothing"
        assert count_overdue(db).waiting_rewrites == 1
    report = rewrite_tables(runtime, "tests")
    assert report is not None and report.failures == {}
    assert (waiting["status"], waiting["completed_at"]) == ("running", None)
    assert (report.tables, report.erasures) == (
        len(list_inventory_tables_to_rewrite(is_sqlite=runtime.database.is_sqlite)),
        1,
    )
    ended = read_erasure(caller, erasure_id)
    assert ended["status"] == "completed" and ended["completed_at"] >= waiting["created_at"]
    assert (ended["due_by"], ended["counts"]) == (waiting["due_by"], waiting["counts"])
    again = rewrite_tables(runtime, "tests")
    assert again is not None and again.tables == 0


def test_the_subject_is_wiped_before_the_rewrite_and_the_open_erasure_answers(
    caller: Caller,
) -> None:
    erasure_id, subject = purge_subject(caller)
    with caller.service.runtime.database.transaction(write=False) as db:
        assert db.get_one(ErasureRow, erasure_id).subject == b""
    assert caller.post(ADDRESS, {"subject": subject, "scope": "all"}).json()["id"] == erasure_id
    rewrite_tables(caller.service.runtime, "tests")


@on_postgresql
def test_a_locked_table_is_left_to_the_next_run(caller: Caller) -> None:
    runtime = caller.service.runtime
    erasure_id, _ = purge_subject(caller)
    with transaction_beside(runtime, "LOCK TABLE tags IN ACCESS SHARE MODE"):
        report = rewrite_tables(runtime, "tests", lock_timeout_ms=50, pause_s=0.0)
    assert report is not None and list(report.failures) == ["tags"]
    assert "its lock was not free" in report.list_failures()[0]
    assert read_erasure(caller, erasure_id)["status"] == "running"
    report = rewrite_tables(runtime, "tests")
    assert report is not None and (report.tables, report.failures) == (1, {})
    assert read_erasure(caller, erasure_id)["status"] == "completed"


@on_postgresql
def test_a_table_whose_dead_rows_a_transaction_still_sees_is_not_done(caller: Caller) -> None:
    runtime = caller.service.runtime
    # The snapshot is older than the purge; it locks none of the tables.
    with transaction_beside(runtime, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 1"):
        erasure_id, _ = purge_subject(caller)
        report = rewrite_tables(runtime, "tests", pause_s=0.0)
        assert report is not None and {"sessions", "outbox", "tags"} <= report.failures.keys()
        assert "still sees" in report.failures["tags"]
        assert read_erasure(caller, erasure_id)["status"] == "running"
    report = rewrite_tables(runtime, "tests")
    assert report is not None and report.failures == {}
    assert read_erasure(caller, erasure_id)["status"] == "completed"


@on_postgresql
def test_a_user_who_may_not_rewrite_is_told_what_to_do(caller: Caller) -> None:
    runtime = caller.service.runtime
    erasure_id, _ = purge_subject(caller)
    with closing(psycopg.connect(runtime.database.url, autocommit=True)) as connection:
        connection.execute("CREATE ROLE clerk")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO clerk")
        database = Database(f"{runtime.database.url}?options=-crole%3Dclerk")
        try:
            report = rewrite_tables(replace(runtime, database=database), "tests")
        finally:
            database.close()
            connection.execute("DROP OWNED BY clerk")
            connection.execute("DROP ROLE clerk")
    assert report is not None and report.failures.keys() == set(
        list_inventory_tables_to_rewrite(is_sqlite=False)
    )
    assert "owner of the database" in report.failures["sessions"]
    rewrite_tables(runtime, "tests")
    assert read_erasure(caller, erasure_id)["status"] == "completed"


@on_postgresql
def test_two_runs_do_not_rewrite_at_once(caller: Caller) -> None:
    runtime = caller.service.runtime
    with runtime.database.transaction(write=True) as db:
        held = hold_lease(db, LEASE, "other", ttl_ms=60_000)
    assert held is not None and rewrite_tables(runtime, "tests") is None
    with runtime.database.transaction(write=True) as db:
        held.release(db)


@on_sqlite
def test_no_copy_is_left_in_the_pages_of_a_small_file_after_an_erasure(caller: Caller) -> None:
    runtime = caller.service.runtime
    erasure_id, subject = purge_subject(caller)
    copy = put_into_a_gap(runtime)
    assert run_removals(runtime, "tests").erasures == 1
    assert read_erasure(caller, erasure_id)["status"] == "completed"
    assert count_hits(runtime, copy) == count_hits(runtime, subject) == 0


@on_sqlite
def test_a_larger_file_is_rewritten_in_the_quiet_hour(caller: Caller) -> None:
    runtime = caller.service.runtime
    erasure_id, _ = purge_subject(caller)
    assert rewrite_small_file(runtime, "tests", most_bytes=1_000) == 0
    assert read_erasure(caller, erasure_id)["status"] == "running"
    report = rewrite_tables(runtime, "tests")
    assert report is not None and (report.tables, report.erasures) == (1, 1)


@on_sqlite
def test_a_file_that_is_in_use_is_left_to_the_next_run(caller: Caller) -> None:
    runtime = caller.service.runtime
    erasure_id, _ = purge_subject(caller)
    path = runtime.database.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as beside:
        beside.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable):
            runtime.database.rewrite_file(wait_ms=50)
        beside.execute("ROLLBACK")
        beside.execute("BEGIN")
        beside.execute("SELECT count(*) FROM sessions").fetchone()
        report = rewrite_tables(runtime, "tests")
        assert report is not None and "its log is being read" in report.list_failures()[0]
        beside.execute("ROLLBACK")
    assert read_erasure(caller, erasure_id)["status"] == "running"
    assert run_removals(runtime, "tests").erasures == 1
    assert read_erasure(caller, erasure_id)["status"] == "completed"


@on_sqlite
def test_a_run_of_retention_rewrites_the_file_after_purges(caller: Caller) -> None:
    runtime = caller.service.runtime
    session_id = recorded_canary(caller, is_sealed=False).session_id
    assert caller.delete(f"/v1/sessions/{session_id}?hard=true").status_code == 204
    finish_purges(runtime)
    for hours, is_due in ((None, True), (1, False), (19, False), (21, True), (-1, True)):
        last = None if hours is None else format_hours_ago(hours)
        execute(runtime, "UPDATE deployment SET rewritten_at = :at", at=last)
        # Purges that ended since: also if the run of the day before was late.
        ended = format_hours_ago({None: 36, -1: 0}.get(hours, (hours or 0) - 0.5))
        execute(runtime, "UPDATE purges SET done_at = :at WHERE done_at IS NOT NULL", at=ended)
        copy = put_into_a_gap(runtime)
        run_retention(runtime, "tests", workspace_id=caller.key.workspace_id)
        assert (count_hits(runtime, copy) == 0) is is_due, hours
    # No purge has ended since.
    execute(runtime, "UPDATE deployment SET rewritten_at = :at", at=format_hours_ago(30))
    execute(runtime, "UPDATE purges SET done_at = :at WHERE done_at IS NOT NULL", at=format_hours_ago(31))
    copy = put_into_a_gap(runtime)
    run_retention(runtime, "tests", workspace_id=caller.key.workspace_id)
    assert count_hits(runtime, copy) == 1


def format_hours_ago(hours: float) -> str:
    """Return an instant as SQLite stores it."""
    return (clock.now() - timedelta(hours=hours)).strftime("%Y-%m-%d %H:%M:%S.%f")
