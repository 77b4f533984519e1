"""Retention: what goes on which day, what stays, and what preview and run say. Spec §8.3; contract §7."""

from datetime import datetime, timedelta

import pytest
from sqlmodel import col, select

from recorder import clock
from recorder.audit.log import Origin
from recorder.audit.verify import read_chain_heads, verify_audit
from recorder.governance.holds import add_hold
from recorder.governance.retention import HELD, preview_retention, run_retention
from recorder.models.governance import AuditHashRow
from recorder.models.memory import SessionPathRow
from recorder.models.operations import AuditRow
from tests.support.completed_work import completed_export, patch, seal_all
from tests.support.factories import Caller, assert_problem
from tests.support.purges import count_hits, finish_purges, purge_row, recorded_canary
from tests.support.recorded_sessions import execute, session_row

DAY = timedelta(days=1)


def counts(caller: Caller, at: datetime) -> dict[str, int]:
    """Count what is due in a caller's workspace at an instant, by kind."""
    report = preview_retention(caller.service.runtime, at=at, workspace_id=caller.key.workspace_id)
    return {kind: count for (_, kind), count in report.counts.items()}


def run_at(caller: Caller, at: datetime) -> dict[str, int]:
    """Run retention in a caller's workspace at an instant; return the counts by kind."""
    runtime = caller.service.runtime
    report = run_retention(runtime, "tests", at=at, workspace_id=caller.key.workspace_id)
    assert report is not None
    return {kind: count for (_, kind), count in report.counts.items()}


def test_sealed_sessions_go_after_the_days_of_events(caller: Caller) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"events_days": 10}})
    canary = recorded_canary(caller)
    sealed_at = session_row(caller.service.runtime, canary.session_id).sealed_at
    assert sealed_at is not None
    early, late = sealed_at + 10 * DAY - timedelta(minutes=1), sealed_at + 10 * DAY + timedelta(minutes=1)
    assert "expired_sessions" not in counts(caller, early)
    assert counts(caller, late)["expired_sessions"] == 1
    assert "expired_sessions" not in run_at(caller, early)
    assert caller.get(f"/v1/sessions/{canary.session_id}").status_code == 200
    assert run_at(caller, late)["expired_sessions"] == 1
    assert caller.get(f"/v1/sessions/{canary.session_id}").status_code == 404
    finish_purges(caller.service.runtime)
    assert count_hits(caller.service.runtime, canary.word) == 0
    assert purge_row(caller.service.runtime, canary.session_id).cause == "retention"


@pytest.mark.parametrize("status", ["created", "recording", "stopped"])
def test_sessions_that_were_never_sealed_count_from_their_last_change(caller: Caller, status: str) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"events_days": 1}})
    session_id = caller.make_session(status=status)
    changed_at = clock.now()
    assert "expired_sessions" not in counts(caller, changed_at + DAY - timedelta(minutes=1))
    assert run_at(caller, changed_at + DAY + timedelta(minutes=1))["expired_sessions"] == 1
    assert caller.get(f"/v1/sessions/{session_id}").status_code == 404


def test_a_late_seal_starts_the_days_again(caller: Caller) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"events_days": 1}})
    session_id = caller.make_session(status="stopped")
    seal_all(caller)
    execute(
        caller.service.runtime,
        "UPDATE sessions SET sealed_at = :at WHERE id = :id",
        at=clock.now() + 5 * DAY if not caller.service.runtime.database.is_sqlite else _sqlite_time(5),
        id=session_id,
    )
    assert "expired_sessions" not in counts(caller, clock.now() + 5 * DAY)
    assert counts(caller, clock.now() + 7 * DAY)["expired_sessions"] == 1


def _sqlite_time(days: int) -> str:
    return (clock.now() + days * DAY).strftime("%Y-%m-%d %H:%M:%S.%f")


def test_deleted_sessions_go_after_30_days_and_test_sessions_after_7(caller: Caller) -> None:
    tester = caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    deleted, tested = caller.make_session(status="deleted"), tester.make_session()
    now = clock.now()
    assert counts(caller, now + 6 * DAY) == {}
    assert counts(caller, now + 8 * DAY)["test_sessions"] == 1
    assert counts(caller, now + 31 * DAY)["deleted_sessions"] == 1
    removed = run_at(caller, now + 31 * DAY)
    assert (removed["deleted_sessions"], removed["test_sessions"]) == (1, 1)
    finish_purges(caller.service.runtime)
    causes = [purge_row(caller.service.runtime, each).cause for each in (deleted, tested)]
    assert causes == ["deletion", "test_expiry"]


def test_a_held_session_is_passed_by(caller: Caller) -> None:
    session_id = caller.make_session(status="deleted")
    with caller.service.runtime.database.transaction(write=True) as db:
        add_hold(db, Origin.operator(caller.key.workspace_id), kind="session", value=session_id)
    later = clock.now() + 40 * DAY
    assert counts(caller, later)[HELD] == 1
    removed = run_at(caller, later)
    assert removed[HELD] == 1 and "deleted_sessions" not in removed
    assert purge_row(caller.service.runtime, session_id) is None


def test_expired_sessions_leave_an_anonymous_row_in_the_graph(caller: Caller) -> None:
    patch(caller, "/v1/workspaces/current", {"retention": {"events_days": 1}})
    canary = recorded_canary(caller)
    path = "/v1/memory/paths?workflow=checkout"
    before = caller.get(path).json()["data"]
    run_at(caller, clock.now() + 2 * DAY)
    finish_purges(caller.service.runtime)
    after = caller.get(path).json()["data"]
    assert [item["session_count"] for item in after] == [item["session_count"] for item in before] == [1]
    with caller.service.runtime.database.transaction(write=False) as db:
        of_workspace = select(SessionPathRow).where(SessionPathRow.workspace_id == caller.key.workspace_id)
        (row,) = db.exec(of_workspace).all()
    assert row.session_id.startswith("ano_") and canary.session_id != row.session_id
    assert (row.started_at.hour, row.started_at.minute, row.started_at.microsecond) == (0, 0, 0)
    assert canary.word not in caller.get("/v1/memory/graph?workflow=checkout").text
    assert caller.get("/v1/workflows/checkout").json()["session_count"] == 0


def test_pruned_audit_entries_keep_the_chain_and_old_heads_valid(caller: Caller) -> None:
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    for _ in range(3):
        caller.delete(f"/v1/sessions/{caller.make_session()}")
    (head,) = read_chain_heads(runtime.database, workspace_id)
    patch(caller, "/v1/workspaces/current", {"retention": {"audit_days": 1}})
    assert counts(caller, clock.now() + 2 * DAY)["audit_entries"] == 4
    assert run_at(caller, clock.now() + 2 * DAY)["audit_entries"] == 4
    entries = caller.get("/v1/audit").json()["data"]
    assert [(entry["action"], entry["details"]) for entry in entries] == [
        ("audit.prune", {"entries": 4, "through": 4})
    ]
    report = verify_audit(runtime.database, workspace_id=workspace_id, heads=[head.hash])
    assert report.is_valid and report.chains[0].entries == 5
    # The heads of a run's report are those after its own entries.
    retained = run_retention(runtime, "tests")
    assert retained is not None and retained.heads == read_chain_heads(runtime.database)


def test_an_entry_that_passes_for_pruned_is_found(caller: Caller) -> None:
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    for _ in range(2):
        caller.delete(f"/v1/sessions/{caller.make_session()}")
    with runtime.database.transaction(write=True) as db:
        first = db.exec(
            select(AuditRow).where(AuditRow.workspace_id == workspace_id).order_by(col(AuditRow.number))
        ).first()
        assert first is not None
        db.add(AuditHashRow(workspace_id=workspace_id, number=1, prev_hash=first.prev_hash, hash=first.hash))
        db.delete(first)
    report = verify_audit(runtime.database, workspace_id=workspace_id)
    assert [(broken.number, broken.kind) for broken in report.chains[0].breaks] == [(1, "changed")]


def test_kept_answers_go_after_a_day(caller: Caller) -> None:
    caller.post("/v1/sessions", {"workflow": "checkout"}, key="k-1")
    assert counts(caller, clock.now() + DAY + timedelta(hours=1))["kept_answers"] == 1
    assert run_at(caller, clock.now() + DAY + timedelta(hours=1))["kept_answers"] == 1
    assert "kept_answers" not in counts(caller, clock.now() + 2 * DAY)


def test_hosted_exports_go_30_days_after_completion(caller: Caller) -> None:
    export = completed_export(caller)
    address = f"/v1/exports/{export['id']}"
    folder = caller.service.runtime.settings.data_dir / "exports"
    assert any(export["id"] in str(path) for path in folder.rglob("*.parquet"))
    assert "hosted_exports" not in run_at(caller, clock.now() + 29 * DAY)
    assert caller.get(f"{address}/manifest").status_code == 200
    assert run_at(caller, clock.now() + 31 * DAY)["hosted_exports"] == 1
    for path in (f"{address}/manifest", f"{address}/diff?against={export['id']}"):
        assert_problem(caller.get(path), 404, "not_found")
    assert not any(export["id"] in str(path) for path in folder.rglob("*.parquet"))
    assert caller.get(address).json()["status"] == "completed"
    assert "hosted_exports" not in run_at(caller, clock.now() + 31 * DAY)


def test_tombstones_go_with_the_audit_log(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.delete(f"/v1/sessions/{session_id}?hard=true")
    finish_purges(caller.service.runtime)
    assert "tombstones" not in run_at(caller, clock.now() + 500 * DAY)
    assert run_at(caller, clock.now() + 550 * DAY)["tombstones"] == 1
    assert purge_row(caller.service.runtime, session_id) is None


def test_a_run_leaves_other_workspaces_alone(caller: Caller) -> None:
    other = caller.service.make_caller()
    session_id = other.make_session(status="deleted")
    run_at(caller, clock.now() + 40 * DAY)
    assert purge_row(caller.service.runtime, session_id) is None
