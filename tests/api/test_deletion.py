"""Deletion of sessions: rights, removal of data, events. Spec §4.1, §8.3; contract §1, §2."""

from datetime import timedelta

from sqlmodel import select

from recorder import clock
from recorder.models.operations import AuditRow
from recorder.models.session import SessionRow
from tests.support.factories import Caller, Service, assert_problem
from tests.support.recorded_sessions import session_row

HARD = "?hard=true"


def test_test_sessions_go_after_7_days(service: Service) -> None:
    tester = service.make_caller(mode="test")
    row = session_row(service.runtime, tester.make_session())
    assert row.purge_after == row.created_at + timedelta(days=7)


def test_live_sessions_stay(caller: Caller) -> None:
    assert session_row(caller.service.runtime, caller.make_session()).purge_after is None


def test_deleted_sessions_go_after_30_days(caller: Caller) -> None:
    session_id = caller.make_session()
    before = clock.now()
    caller.delete(f"/v1/sessions/{session_id}")
    row = session_row(caller.service.runtime, session_id)
    assert row.deleted_at is not None and row.deleted_at >= before
    assert row.purge_after == row.deleted_at + timedelta(days=30)


def test_a_deleted_test_session_goes_no_later_than_it_would_have(service: Service) -> None:
    tester = service.make_caller(mode="test")
    session_id = tester.make_session(status="deleted")
    row = session_row(service.runtime, session_id)
    assert row.purge_after == row.created_at + timedelta(days=7)


def test_what_is_due_is_found_by_its_own_index(caller: Caller) -> None:
    session_id = caller.make_session(status="deleted")
    due = (clock.now() + timedelta(days=31)).isoformat()
    with caller.service.runtime.database.transaction(write=False) as db:
        statement = select(SessionRow.id).where(SessionRow.purge_after <= clock.parse_time(due, name="due"))
        assert session_id in set(db.exec(statement))
        if caller.service.runtime.database.is_sqlite:
            query = "EXPLAIN QUERY PLAN SELECT id FROM sessions WHERE purge_after <= ?"
            plan = db.connection().exec_driver_sql(query, (due,)).all()
            assert "ix_sessions_to_purge" in str(plan)


def test_hard_deletion_needs_admin(caller: Caller) -> None:
    session_id = caller.make_session()
    writer = caller.service.make_caller(workspace_id=caller.key.workspace_id, scope="write")
    for path in (session_id, "ses_none"):
        assert_problem(writer.delete(f"/v1/sessions/{path}{HARD}"), 403, "insufficient_scope")
    assert caller.get(f"/v1/sessions/{session_id}").status_code == 200
    assert writer.delete(f"/v1/sessions/{session_id}?hard=false").status_code == 204


def test_a_deletion_is_audited_once(caller: Caller) -> None:
    session_id = caller.make_session()
    for _ in range(2):
        caller.delete(f"/v1/sessions/{session_id}")
    with caller.service.runtime.database.transaction(write=False) as db:
        rows = db.exec(select(AuditRow).where(AuditRow.resource_id == session_id)).all()
    assert [(row.action, row.resource_type, row.actor_id) for row in rows] == [
        ("session.delete", "session", caller.key.key_id)
    ]
