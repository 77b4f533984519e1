"""Rewrites of PostgreSQL's tables before an erasure ends; SQLite needs none. Spec §4.5; contract §7."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from recorder.governance.content_inventory import list_tables_to_rewrite
from recorder.governance.erasures import has_erasures_to_continue, run_erasures
from recorder.governance.overdue import count_overdue
from recorder.governance.table_rewrites import LEASE, has_waiting_erasures, rewrite_tables
from recorder.models.governance import ErasureRow
from recorder.runtime import Runtime
from recorder.storage.database import Database
from recorder.storage.leases import hold_lease
from tests.governance.test_erasure import ADDRESS
from tests.support.factories import Caller
from tests.support.purges import finish_purges, recorded_canary


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


#: SQLite has no tables to rewrite.
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def test_an_erasure_is_completed_once_its_tables_were_rewritten(caller: Caller) -> None:
    runtime = caller.service.runtime
    erasure_id, _ = purge_subject(caller)
    waiting = read_erasure(caller, erasure_id)
    with runtime.database.transaction(write=False) as db:
        assert has_waiting_erasures(db) is not runtime.database.is_sqlite
        assert not has_erasures_to_continue(db), "the sensor of purges would start runs for nothing"
        assert count_overdue(db).waiting_rewrites == (0 if runtime.database.is_sqlite else 1)
    report = rewrite_tables(runtime, "tests")
    assert report is not None and report.failures == {}
    if runtime.database.is_sqlite:
        assert (waiting["status"], report.tables) == ("completed", 0)
        return
    assert (waiting["status"], waiting["completed_at"]) == ("running", None)
    assert (report.tables, report.erasures) == (len(list_tables_to_rewrite()), 1)
    ended = read_erasure(caller, erasure_id)
    assert ended["status"] == "completed" and ended["completed_at"] >= waiting["created_at"]
    assert (ended["due_by"], ended["counts"]) == (waiting["due_by"], waiting["counts"])
    again = rewrite_tables(runtime, "tests")
    assert again is not None and again.tables == 0


@on_postgresql
def test_the_subject_is_wiped_before_the_rewrite_and_the_open_erasure_answers(
    caller: Caller,
) -> None:
    erasure_id, subject = purge_subject(caller)
    with caller.service.runtime.database.transaction(write=False) as db:
        assert db.get_one(ErasureRow, erasure_id).subject == b""
    assert caller.post(ADDRESS, {"subject": subject, "scope": "all"}).json()["id"] == erasure_id
    rewrite_tables(caller.service.runtime, "tests")


@on_postgresql
def test_a_locked_table_is_left_to_the_next_run(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recorder.governance.table_rewrites._LOCK_TIMEOUT_MS", 50)
    monkeypatch.setattr("recorder.governance.table_rewrites._PAUSE_S", 0.0)
    runtime = caller.service.runtime
    erasure_id, _ = purge_subject(caller)
    with transaction_beside(runtime, "LOCK TABLE tags IN ACCESS SHARE MODE"):
        report = rewrite_tables(runtime, "tests")
    assert report is not None and list(report.failures) == ["tags"]
    assert "its lock was not free" in report.list_failures()[0]
    assert read_erasure(caller, erasure_id)["status"] == "running"
    report = rewrite_tables(runtime, "tests")
    assert report is not None and (report.tables, report.failures) == (1, {})
    assert read_erasure(caller, erasure_id)["status"] == "completed"


@on_postgresql
def test_a_table_whose_dead_rows_a_transaction_still_sees_is_not_done(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.governance.table_rewrites._PAUSE_S", 0.0)
    runtime = caller.service.runtime
    # The snapshot is older than the purge; it locks none of the tables.
    with transaction_beside(runtime, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 1"):
        erasure_id, _ = purge_subject(caller)
        report = rewrite_tables(runtime, "tests")
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
    assert report is not None and report.failures.keys() == set(list_tables_to_rewrite())
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
