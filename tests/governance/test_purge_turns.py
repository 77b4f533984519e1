"""Turns of purges: hard deletes first, workspaces by their time, rounds that end soon. Contract §2, §7."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlmodel import col, func, insert, select

from recorder import clock
from recorder.exports.runner.run import run_export
from recorder.governance.purging.due_steps import DueStepWork
from recorder.governance.purging.purge_runs import PURGE_LEASE, run_purges
from recorder.governance.purging.session_content import remove_session_contents
from recorder.ids import new_id
from recorder.models.event import EventBatchRow
from recorder.models.export import ExportRow, ExportSessionRow
from recorder.models.governance import PurgeRow
from recorder.runtime import Runtime
from recorder.storage.leases import lease_for_block
from recorder.tenant import Tenant
from tests.support.factories import Caller
from tests.support.purges import count_hits, make_due, open_purges, purge_row, recorded_canary
from tests.support.query_plans import noted_statements, plan_of
from tests.support.recorded_sessions import execute, let_lease_run_out, open_desk
from tests.support.rewritten_exports import hide_for_purge
from tests.support.sealed_sessions import Recording, seal

OTHER = "wsp_01k0000000000000000000000b"


@pytest.fixture(autouse=True)
def no_purges(runtime: Runtime) -> None:
    """Check that no purge of an earlier test is open."""
    execute(runtime, "DELETE FROM purges")
    let_lease_run_out(runtime)


@contextmanager
def purge_work(runtime: Runtime, *, round_s: float = 10.0) -> Iterator[DueStepWork]:
    """Yield the work of a run."""
    with lease_for_block(runtime.database, PURGE_LEASE, "tests", ttl_ms=60_000) as held:
        assert held is not None
        yield DueStepWork(runtime, held, round_s=round_s)


def seal_one(runtime: Runtime, workspace_id: str, **members: str) -> str:
    """Return a sealed session of a workspace."""
    (session_id,) = seal(runtime, [Recording(**members)], workspace_id=workspace_id)
    return session_id


def hide(runtime: Runtime, session_id: str, *, step: str = "lake", cause: str = "retention") -> None:
    """Begin a purge that is due at its step."""
    hide_for_purge(runtime, session_id)
    execute(
        runtime,
        "UPDATE purges SET step = :step, cause = :cause WHERE session_id = :id",
        step=step,
        cause=cause,
        id=session_id,
    )


def add_backlog(
    runtime: Runtime,
    workspace_id: str,
    sessions: int | list[str],
    *,
    cause: str = "retention",
    step: str = "content",
) -> None:
    """Add purges of sessions without content, which have been due for an hour."""
    session_ids = [new_id("ses") for _ in range(sessions)] if isinstance(sessions, int) else sessions
    at = clock.now() - timedelta(hours=1)
    purge = {
        "workspace_id": workspace_id,
        "mode": "live",
        "workflow": "checkout",
        "cause": cause,
        "step": step,
        "due_at": at,
        "requested_at": at,
        "dates": [],
    }
    rows = [purge | {"session_id": session_id} for session_id in session_ids]
    with runtime.database.transaction(write=True) as db:
        db.connection().execute(insert(PurgeRow), rows)


def count_steps(runtime: Runtime, workspace_id: str, step: str) -> int:
    """Return how many purges of a workspace are in a step."""
    wanted = (PurgeRow.workspace_id == workspace_id, PurgeRow.step == step)
    with runtime.database.transaction(write=False) as db:
        return db.exec(select(func.count()).select_from(PurgeRow).where(*wanted)).one()


def test_a_hard_delete_precedes_thousands_of_due_steps_of_another_workspace(runtime: Runtime) -> None:
    tenant, busy = Tenant(OTHER, "live"), new_id("wsp")
    deleted = seal_one(runtime, OTHER)
    add_backlog(runtime, busy, 3_000)
    hide(runtime, deleted, cause="hard_delete")
    with purge_work(runtime) as work:
        assert work.work_on_due_steps()
    assert purge_row(runtime, deleted).step == "files"
    for kind in ("events", "sessions"):
        rows = runtime.lake.scan(kind, tenant).collect()  # type: ignore[arg-type]
        assert deleted not in set(rows["session_id"])
    assert count_steps(runtime, busy, "content") == 3_000


def test_hard_deletes_of_one_workspace_leave_every_second_round_to_the_others(runtime: Runtime) -> None:
    flooding, busy = new_id("wsp"), new_id("wsp")
    expired = seal_one(runtime, OTHER)
    add_backlog(runtime, flooding, 500, cause="hard_delete")
    add_backlog(runtime, busy, 150)
    hide(runtime, expired)
    left = []
    with purge_work(runtime, round_s=0) as work:
        for _ in range(6):
            work.work_on_due_steps()
            left.append([count_steps(runtime, workspace_id, "content") for workspace_id in (flooding, busy)])
    # A round whose time is up at once removes the contents of 100 sessions.
    assert left[0] == [400, 150] and left[1][0] == 400
    assert left[-1][0] < 400 and left[-1][1] == 50 and purge_row(runtime, expired).step == "files"


def test_workspaces_take_turns_by_the_time_that_they_used(runtime: Runtime) -> None:
    busy, other = new_id("wsp"), new_id("wsp")
    expired = seal_one(runtime, OTHER)
    add_backlog(runtime, busy, 1_000)
    add_backlog(runtime, other, 1_000)
    with purge_work(runtime, round_s=0) as work:
        for _ in range(4):
            work.work_on_due_steps()
        left = [count_steps(runtime, workspace_id, "content") for workspace_id in (busy, other)]
        assert max(left) < 1_000
        hide(runtime, expired)
        for _ in range(3):
            work.work_on_due_steps()
    assert purge_row(runtime, expired).step == "files"


def test_rounds_that_end_at_once_still_bring_each_purge_to_its_end(caller: Caller) -> None:
    runtime = caller.service.runtime
    canaries = [recorded_canary(caller, workflow=workflow) for workflow in ("checkout", "refund", "refund")]
    body = {"workflow": ["checkout", "refund"], "format": "jsonl", "destination": {"kind": "signed_url"}}
    for _ in range(3):
        run_export(runtime, caller.post("/v1/exports", body).json()["id"], owner="tests")
    hide_for_purge(runtime, *(canary.session_id for canary in canaries), cause="retention")
    with purge_work(runtime, round_s=0) as work:
        for _ in range(40):
            make_due(runtime)
            work.work_on_due_steps()
        assert work.report.failed_steps == 0
    assert open_purges(runtime) == []
    assert [count_hits(runtime, canary.word) for canary in canaries] == [0, 0, 0]


def test_the_rows_of_a_large_session_leave_in_several_rounds(runtime: Runtime) -> None:
    with open_desk(runtime) as desk:
        session_id = desk.record(is_stopped=False)
    batch = {"session_id": session_id, "payload": b"x", "codec": 0}
    with runtime.database.transaction(write=True) as db:
        (first,) = db.exec(select(EventBatchRow).where(col(EventBatchRow.session_id) == session_id))
        batch = first.model_dump()
        copies = [batch | {"first_position": 1_000 + number} for number in range(450)]
        db.connection().execute(insert(EventBatchRow), copies)
    hide_for_purge(runtime, session_id)
    purge = purge_row(runtime, session_id)
    remove = partial(
        remove_session_contents,
        runtime,
        [purge],
        open_transaction=partial(runtime.database.transaction, write=True),
        is_time_up=lambda: True,
    )
    assert [remove() for _ in range(3)] == [False, False, True]


def test_the_workspaces_with_due_purges_are_found_by_indexes(runtime: Runtime) -> None:
    add_backlog(runtime, new_id("wsp"), 1)
    add_backlog(runtime, new_id("wsp"), 1, cause="hard_delete")
    with noted_statements() as noted:
        run_purges(runtime, "tests")
    reads = [each for each in noted if "FROM purges" in each[0] and not each[0].startswith("UPDATE")]
    plans = {plan_of(runtime.database, *each) for each in reads if "due_at" in each[0]}
    turns = [plan for plan in plans if "first" in plan]
    assert any("ix_purges_hard_deletes" in plan for plan in turns)
    assert any("ix_purges_of_workspace" in plan for plan in turns)
    for plan in plans:
        assert "SCAN purges\n" not in plan and "Seq Scan on purges" not in plan


def add_exported_purges(
    runtime: Runtime, *, waiting: int, gone: int = 0, sessions: int
) -> tuple[list[str], list[str]]:
    """Add purges of sessions of exports; return the ids of both, the newest export first.

    Args:
        runtime: the deployment.
        waiting: number of failed exports whose files are removed by another run, the newest.
        gone: number of exports whose rows are gone.
        sessions: number of sessions, each of which is in all exports.
    """
    workspace_id, session_ids = new_id("wsp"), sorted(new_id("ses") for _ in range(sessions))
    add_backlog(runtime, workspace_id, session_ids, step="exports")
    export_ids = sorted((new_id("exp") for _ in range(waiting + gone)), reverse=True)
    rows = [
        {"session_id": session_id, "export_id": each} for session_id in session_ids for each in export_ids
    ]
    with runtime.database.transaction(write=True) as db:
        for export_id in export_ids[:waiting]:
            db.add(make_failed_export(workspace_id, export_id))
        db.connection().execute(insert(ExportSessionRow), rows)
    return session_ids, export_ids


def list_visits(noted: list[tuple[str, Any]], export_ids: list[str]) -> list[str]:
    """Return the exports whose rows were read, in this order."""
    reads = [parameters for statement, parameters in noted if "FROM exports" in statement]
    values = [list(each.values() if isinstance(each, dict) else each) for each in reads]
    return [value for each in values for value in each if value in export_ids]


def test_a_round_reads_the_sessions_of_the_exports_that_it_visits_alone(runtime: Runtime) -> None:
    _, export_ids = add_exported_purges(runtime, waiting=40, sessions=30)
    with purge_work(runtime, round_s=0) as work, noted_statements() as noted:
        assert work.work_on_due_steps()
        reads = [each for each in noted if "FROM export_sessions" in each[0]]
        with runtime.database.transaction(write=False) as db:
            assert sum(len(db.connection().exec_driver_sql(*each).all()) for each in reads) < 100
        for _ in range(41):
            make_due(runtime)
            assert work.work_on_due_steps()
    # A round whose time is up at once visits one export; after the last one the newest is next.
    assert list_visits(noted, export_ids) == [*export_ids, *export_ids[:2]]


def test_exports_that_wait_in_each_round_keep_no_sessions_in_the_others(runtime: Runtime) -> None:
    session_ids, export_ids = add_exported_purges(runtime, waiting=1, gone=1, sessions=3)
    with purge_work(runtime, round_s=0) as work:
        for _ in range(2):
            make_due(runtime)
            assert work.work_on_due_steps()
    exports = select(ExportSessionRow.export_id).where(col(ExportSessionRow.session_id).in_(session_ids))
    with runtime.database.transaction(write=False) as db:
        assert set(db.exec(exports)) == {export_ids[0]}
    assert [step for session_id, step in open_purges(runtime) if session_id in session_ids] == ["exports"] * 3


def make_failed_export(workspace_id: str, export_id: str) -> ExportRow:
    """Return a failed export some of whose files are left."""
    return ExportRow(
        id=export_id,
        workspace_id=workspace_id,
        mode="live",
        status="failed",
        files_left=True,
        is_indexed=True,
        spec={},
        dataset="tests",
        format="jsonl",
        destination={"kind": "signed_url"},
        created_at=clock.now(),
    )
