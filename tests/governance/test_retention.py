"""Retention: what goes on which day, what stays, and what preview and run say. Spec §8.3; contract §7."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlmodel import col, insert, select

from recorder import clock
from recorder.audit.log import Origin, audit_entry_of, first_audit_hash, hash_audit_entry
from recorder.audit.pruning import prune_audit_entries
from recorder.audit.verify import read_chain_heads, verify_audit
from recorder.errors import NotFound, Unavailable
from recorder.exports.destinations import Destination, open_destination
from recorder.exports.results import expiry
from recorder.exports.runner.export_lease import claim_export
from recorder.governance.holds import add_hold
from recorder.governance.purging.due_sessions import begin_purges, list_due_sessions
from recorder.governance.retention import HELD, preview_retention, run_retention
from recorder.models.export import ExportRow
from recorder.models.governance import AuditHashRow
from recorder.models.memory import SessionPathRow
from recorder.models.operations import AuditHeadRow, AuditRow, IdempotencyRow
from recorder.models.workspace import WorkspaceRow
from recorder.settings import Settings
from recorder.storage.leases import LeaseLost
from tests.support.completed_work import completed_export, patch
from tests.support.factories import Caller, assert_problem
from tests.support.purges import count_hits, finish_purges, purge_row, recorded_canary
from tests.support.recorded_sessions import copy_session, execute, session_row
from tests.support.sealing import seal_all
from tests.support.webhooks import LOCAL, WEBHOOKS, make

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
    seal_all(caller.service.runtime)
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


def test_a_tag_that_another_workspace_holds_keeps_no_session(caller: Caller) -> None:
    session_id, other = caller.make_session(), caller.service.make_caller()
    caller.post(f"/v1/sessions/{session_id}/tags", {"name": "case"})
    caller.delete(f"/v1/sessions/{session_id}")
    with caller.service.runtime.database.transaction(write=True) as db:
        add_hold(db, Origin.operator(other.key.workspace_id), kind="tag", value="case")
    assert run_at(caller, clock.now() + 40 * DAY)["deleted_sessions"] == 1


def test_a_hold_that_comes_while_a_run_is_under_way_counts(caller: Caller) -> None:
    runtime, origin = caller.service.runtime, Origin.operator(caller.key.workspace_id)
    session_id, at = caller.make_session(status="deleted"), clock.now() + 40 * DAY
    with runtime.database.transaction(write=False) as db:
        workspace = db.get_one(WorkspaceRow, caller.key.workspace_id)
    (page,) = list_due_sessions(runtime.database, workspace, at=at)
    assert [(each.session_id, each.is_held) for each in page] == [(session_id, False)]
    with runtime.database.transaction(write=True) as db:
        add_hold(db, origin, kind="session", value=session_id)
        assert begin_purges(db, workspace, page, at=at, now=at) == []


def test_a_session_whose_purge_began_takes_no_hold(caller: Caller) -> None:
    session_id = caller.make_session(status="deleted")
    run_at(caller, clock.now() + 40 * DAY)
    with caller.service.runtime.database.transaction(write=True) as db, pytest.raises(NotFound):
        add_hold(db, Origin.operator(caller.key.workspace_id), kind="session", value=session_id)


def test_all_of_many_due_sessions_go_in_one_run(caller: Caller) -> None:
    runtime, later = caller.service.runtime, clock.now() + 40 * DAY
    session_id = caller.make_session(status="deleted")
    copies = copy_session(runtime, session_id, 1_001)
    assert counts(caller, later)["deleted_sessions"] == 1_002
    assert run_at(caller, later)["deleted_sessions"] == 1_002
    assert all(purge_row(runtime, each) for each in (session_id, copies[0], copies[-1]))
    assert "deleted_sessions" not in run_at(caller, later)


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


@pytest.mark.parametrize("ahead", [[1], [2, 3], [4]], ids=["first", "between", "last"])
@pytest.mark.parametrize("limit", [2, 100])
def test_entries_of_a_clock_that_was_ahead_keep_no_others(
    caller: Caller, ahead: list[int], limit: int
) -> None:
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    for _ in range(4):
        caller.delete(f"/v1/sessions/{caller.make_session()}")
    with runtime.database.transaction(write=True) as db:
        rows = db.exec(select(AuditRow).filter_by(workspace_id=workspace_id).order_by(col(AuditRow.number)))
        prev_hash = first_audit_hash(workspace_id)
        for row in rows.all():
            row.at = clock.now() + (300 * DAY if row.number in ahead else -2 * DAY)
            row.prev_hash = prev_hash
            row.hash = prev_hash = hash_audit_entry(audit_entry_of(row))
            db.add(row)
        db.get_one(AuditHeadRow, workspace_id).hash = prev_hash
    patch(caller, "/v1/workspaces/current", {"retention": {"audit_days": 1}})
    before = clock.now() - DAY
    total = 0
    while True:
        with runtime.database.transaction(write=True) as db:
            pruned = prune_audit_entries(db, workspace_id, before=before, limit=limit)
        total += pruned
        if pruned < limit:
            break
    # The last entry of a clock that was ahead is as old as the one after it, which is young.
    assert total == (3 if ahead == [4] else 4)
    with runtime.database.transaction(write=False) as db:
        left = db.exec(select(AuditRow.number).filter_by(workspace_id=workspace_id)).all()
    assert min(left) == total + 1
    assert verify_audit(runtime.database, workspace_id=workspace_id).is_valid


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


def test_all_of_many_kept_answers_go_in_one_run(caller: Caller) -> None:
    caller.post("/v1/sessions", {"workflow": "checkout"}, key="k-1")
    with caller.service.runtime.database.transaction(write=True) as db:
        (row,) = db.exec(select(IdempotencyRow).filter_by(workspace_id=caller.key.workspace_id)).all()
        copies = [row.model_dump() | {"key": f"{number:064}"} for number in range(1_001)]
        db.connection().execute(insert(IdempotencyRow), copies)
    assert run_at(caller, clock.now() + 2 * DAY)["kept_answers"] == 1_002
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
    assert plans_of(caller, export["id"]) == []
    assert caller.get(address).json()["status"] == "completed"
    assert "hosted_exports" not in run_at(caller, clock.now() + 31 * DAY)


def test_hosted_exports_of_a_store_that_is_not_mounted_stay(caller: Caller, tmp_path: Path) -> None:
    export = completed_export(caller)
    runtime, at = caller.service.runtime, clock.now() + 31 * DAY
    folder = Path(runtime.settings.export_url)
    folder.rename(tmp_path / "mounted")
    folder.mkdir()
    report = run_retention(runtime, "tests", at=at, workspace_id=caller.key.workspace_id)
    assert report is not None and [failure.subject for failure in report.failures] == ["hosted exports"]
    folder.rmdir()
    (tmp_path / "mounted").rename(folder)
    assert run_at(caller, at)["hosted_exports"] == 1
    assert not any(export["id"] in str(path) for path in folder.rglob("*.parquet"))


def plans_of(caller: Caller, export_id: str) -> list[str]:
    """Return the stored plans of an export, which name its sessions."""
    return list(caller.service.runtime.blobs.keys(f"exports/{caller.key.workspace_id}/{export_id}/"))


def test_what_a_run_left_of_a_hosted_export_goes_with_the_next(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = completed_export(caller)

    def fail(*_: object) -> None:
        raise Unavailable("The store of exports")

    with monkeypatch.context() as patched:
        patched.setattr(expiry, "open_destination", fail)
        assert "hosted_exports" not in run_at(caller, clock.now() + 31 * DAY)
    assert len(plans_of(caller, export["id"])) == 1
    assert run_at(caller, clock.now() + 31 * DAY)["hosted_exports"] == 1
    folder = caller.service.runtime.settings.data_dir / "exports"
    assert not any(export["id"] in str(path) for path in folder.rglob("*.parquet"))
    assert plans_of(caller, export["id"]) == []


@pytest.mark.parametrize("error", [Unavailable("The store of exports"), LeaseLost()])
def test_a_hosted_export_that_cannot_be_deleted_stops_no_later_one(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    first, *later = (completed_export(caller)["id"] for _ in range(3))
    at = clock.now() + 31 * DAY

    def refuse_first(row: ExportRow, settings: Settings) -> Destination:
        if row.id == first:
            raise error
        return open_destination(row, settings)

    monkeypatch.setattr(expiry, "open_destination", refuse_first)
    if isinstance(error, LeaseLost):
        with pytest.raises(LeaseLost):
            run_retention(runtime, "tests", at=at, workspace_id=workspace_id)
        assert [len(plans_of(caller, each)) for each in (first, *later)] == [1, 1, 1]
        return
    report = run_retention(runtime, "tests", at=at, workspace_id=workspace_id)
    assert report is not None and report.counts[workspace_id, "hosted_exports"] == 2
    (failure,) = report.failures
    assert failure.subject == "hosted exports" and failure.error.startswith("Failed hosted exports: 1.")
    assert str(error) in failure.error
    assert [len(plans_of(caller, each)) for each in (first, *later)] == [1, 0, 0]
    for export_id in later:
        assert_problem(caller.get(f"/v1/exports/{export_id}/manifest"), 404, "not_found")


def test_a_hosted_export_that_another_run_works_on_does_not_count_as_removed(caller: Caller) -> None:
    runtime, export_id = caller.service.runtime, completed_export(caller)["id"]
    with runtime.database.transaction(write=True) as db:
        claim = claim_export(runtime.database, db, export_id, owner="a rewrite", lease_ms=60_000)
    assert "hosted_exports" not in run_at(caller, clock.now() + 31 * DAY)
    assert len(plans_of(caller, export_id)) == 1
    claim.give_back()
    assert run_at(caller, clock.now() + 31 * DAY)["hosted_exports"] == 1


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_exports_in_places_of_others_never_expire(caller: Caller, kind: str) -> None:
    export_id = completed_export(caller)["id"]
    with caller.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(ExportRow, export_id)
        row.destination = {"kind": kind, "path": "out", "bucket": "elsewhere"}
        db.add(row)
    later = clock.now() + 400 * DAY
    assert "hosted_exports" not in counts(caller, later)
    assert "hosted_exports" not in run_at(caller, later)


def test_delivery_records_are_due_after_30_days_unless_they_still_wait(caller: Caller) -> None:
    sent = caller.post(f"{WEBHOOKS}/{make(caller, url=LOCAL)['id']}/test").json()
    now = clock.now()
    assert "deliveries" not in counts(caller, now + 31 * DAY)
    execute(
        caller.service.runtime,
        "UPDATE webhook_deliveries SET status = 'succeeded' WHERE id = :id",
        id=sent["id"],
    )
    assert "deliveries" not in counts(caller, now + 29 * DAY)
    assert counts(caller, now + 31 * DAY)["deliveries"] == run_at(caller, now + 31 * DAY)["deliveries"] == 1
    assert "deliveries" not in counts(caller, now + 31 * DAY)


def test_tombstones_go_with_the_audit_log(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.delete(f"/v1/sessions/{session_id}?hard=true")
    # One of a purge that is open still stands for its work.
    assert "tombstones" not in run_at(caller, clock.now() + 550 * DAY)
    finish_purges(caller.service.runtime)
    assert "tombstones" not in run_at(caller, clock.now() + 500 * DAY)
    assert run_at(caller, clock.now() + 550 * DAY)["tombstones"] == 1
    assert purge_row(caller.service.runtime, session_id) is None


def test_a_run_leaves_other_workspaces_alone(caller: Caller) -> None:
    other = caller.service.make_caller()
    session_id, purged_id = other.make_session(status="deleted"), other.make_session()
    other.delete(f"/v1/sessions/{purged_id}?hard=true")
    finish_purges(caller.service.runtime)
    run_at(caller, clock.now() + 550 * DAY)
    assert purge_row(caller.service.runtime, session_id) is None
    assert purge_row(caller.service.runtime, purged_id).step == "done"
