"""Limits by which one workspace's exports keep others' exports from waiting. Spec §4.3, contract §5."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import col, select

from recorder import clock, limits
from recorder.audit.log import Origin
from recorder.errors import LimitReached
from recorder.exports.planning.selection import (
    LONGEST_WAIT,
    measure_export_selection,
    plan_selected_sessions,
)
from recorder.exports.planning.sharding import plan_shards
from recorder.exports.requests.export_operations import (
    create_export,
    prepare_export_draft,
    queue_draft_export,
)
from recorder.exports.requests.validation import validate_export_request
from recorder.exports.runner.export_lease import claim_export, list_due_exports, read_export_states
from recorder.exports.runner.finalize import cancel_tenant_export
from recorder.exports.runner.replayability_wait import (
    ReplayabilityAwaited,
    recount_awaited_replayability,
    wait_for_replayability,
)
from recorder.exports.runner.run import run_export
from recorder.exports.runner.small_exports import (
    SMALL_SESSIONS,
    bound_small_export_shards,
    is_small_export,
)
from recorder.models.export import ExportRow, ExportWorkflowRow
from recorder.models.export_request import ExportCreate
from recorder.models.session import SessionRow
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.query_plans import noted_statements, plan_of
from tests.support.sealed_sessions import START, WORKSPACE, Recording, seal

OTHER = "wsp_other"


@pytest.fixture
def runtime(on_either_engine: Runtime) -> Runtime:
    """Return a deployment of two workspaces with a session each."""
    with on_either_engine.database.transaction(write=True) as db:
        db.add(WorkspaceRow(id=OTHER, name="other", region="us", tier="default", created_at=START))
    for workspace_id in (WORKSPACE, OTHER):
        seal(on_either_engine, [Recording()], workspace_id=workspace_id)
    return on_either_engine


def draft(workspace_id: str = WORKSPACE, mode: str = "live", **body: Any) -> ExportRow:
    request = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}} | body
    return validate_export_request(Tenant(workspace_id, mode), ExportCreate.model_validate(request))


def ask(runtime: Runtime, workspace_id: str = WORKSPACE, **body: Any) -> ExportRow:
    request = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}} | body
    return create_export(
        runtime,
        Tenant(workspace_id, "live"),
        ExportCreate.model_validate(request),
        origin=Origin.operator(workspace_id),
    )


def read(runtime: Runtime, export_id: str) -> ExportRow:
    with runtime.database.transaction(write=False) as db:
        return db.get_one(ExportRow, export_id)


def due(runtime: Runtime, **options: Any) -> list[str]:
    with runtime.database.transaction(write=False) as db:
        return [row.id for row in list_due_exports(db, **({"limit": 9} | options))]


def set_replayability(runtime: Runtime, **columns: Any) -> None:
    """Set columns of all sessions."""
    with runtime.database.transaction(write=True) as db:
        for session in db.exec(select(SessionRow)):
            for name, value in columns.items():
                setattr(session, name, value)
            db.add(session)


def awaiting(runtime: Runtime, workspace_id: str, count: int) -> list[str]:
    """Return the exports that wait for the replayability of a session."""
    set_replayability(runtime, replayability=None, replayability_at=None)
    rows = [ask(runtime, workspace_id, filter={"min_replayability": 0.5}) for _ in range(count)]
    assert {row.awaited_sessions for row in rows} == {1}
    return [row.id for row in rows]


def counted(runtime: Runtime, export_ids: Sequence[str]) -> list[str]:
    """Return the exports that were counted again."""
    with runtime.database.transaction(write=False) as db:
        statement = select(ExportRow.id).where(
            col(ExportRow.id).in_(export_ids), col(ExportRow.awaited_counted_at).is_not(None)
        )
        return sorted(db.exec(statement))


def test_the_first_export_of_each_workspace_comes_before_the_second_of_one(runtime: Runtime) -> None:
    ours = [ask(runtime).id for _ in range(4)]
    theirs = [ask(runtime, OTHER).id for _ in range(2)]
    assert due(runtime) == [ours[0], theirs[0], ours[1], theirs[1], ours[2], ours[3]]
    assert due(runtime, limit=3) == [ours[0], theirs[0], ours[1]]
    assert due(runtime, per_workspace=1) == [ours[0], theirs[0]]


def test_states_name_the_workspace_and_whether_a_run_is_missing(runtime: Runtime) -> None:
    waiting, held, over, left = (ask(runtime).id for _ in range(4))
    with runtime.database.transaction(write=True) as db:
        claim_export(runtime.database, db, held, owner="run")
        for export_id in (over, left):
            row = db.get_one(ExportRow, export_id)
            row.status, row.completed_at, row.files_left = "failed", clock.now(), export_id == left
    with runtime.database.transaction(write=False) as db:
        states = read_export_states(db, [waiting, held, over, left, "exp_unknown"])
    assert {export_id: state.needs_run for export_id, state in states.items()} == {
        waiting: True,
        held: False,
        over: False,
        left: True,
    }
    assert {state.workspace_id for state in states.values()} == {WORKSPACE}


def test_a_workspace_has_a_limited_number_of_open_exports(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPEN_EXPORTS", 2)
    first, _ = ask(runtime), ask(runtime)
    with noted_statements() as noted, pytest.raises(LimitReached, match=r"2 exports .* or cancel some"):
        ask(runtime)
    plans = [plan_of(runtime.database, *statement) for statement in noted if "completed_at" in statement[0]]
    assert len(plans) == 1 and "ix_exports_open" in plans[0]
    with runtime.database.transaction(write=False) as db, pytest.raises(LimitReached):
        # The limit is that of both modes.
        prepare_export_draft(db, draft(mode="live"))
    assert ask(runtime, OTHER).status == "queued"
    with runtime.database.transaction(write=True) as db:
        origin = Origin.operator(WORKSPACE)
        cancel_tenant_export(db, runtime.settings, first.tenant, first.id, origin=origin)
    assert ask(runtime).status == "queued"


def test_queueing_counts_no_sessions_and_stores_all_workflows_at_once(runtime: Runtime) -> None:
    names = [f"flow_{number:02}" for number in range(20)]
    seal(runtime, [Recording(workflow=name) for name in names])
    set_replayability(runtime, replayability=None, replayability_at=None)
    row = draft(workflow=names, filter={"min_replayability": 0.5})
    with runtime.database.transaction(write=False) as db:
        prepare_export_draft(db, row)
    with noted_statements() as noted, runtime.database.transaction(write=True) as db:
        queue_draft_export(db, runtime.settings, row, origin=Origin.operator(WORKSPACE))
    texts = [statement for statement, _ in noted]
    assert [text for text in texts if "replayability_at" in text] == []
    assert len([text for text in texts if "INSERT INTO export_workflows" in text]) == 1
    with runtime.database.transaction(write=False) as db:
        statement = select(ExportWorkflowRow.workflow).where(ExportWorkflowRow.export_id == row.id)
        assert sorted(db.exec(statement)) == names
    assert read(runtime, row.id).awaited_sessions == 20


@pytest.mark.parametrize(
    ("body", "most", "is_small"),
    [
        ({}, 34, True),
        ({"split": {"validation": 0.3, "test": 0.3}}, 102, False),
        ({"split": {"validation": 0.3, "test": 0}}, 68, True),
        ({"split": {"validation": 0.3, "test": 0.3}, "format": "webdataset"}, 51, True),
        ({"split": {"validation": 0.3, "test": 0.3}, "workflow": "flow_01"}, 6, True),
    ],
)
def test_an_export_of_many_files_is_not_small(
    runtime: Runtime, body: dict[str, Any], most: int, is_small: bool
) -> None:
    names = [f"flow_{number:02}" for number in range(17)]
    seal(runtime, [Recording(workflow=name, frames=[0]) for name in names for _ in range(3)])
    row = ask(runtime, **({"workflow": names} | body))
    with runtime.database.transaction(write=False) as db:
        size = measure_export_selection(db, row.tenant, row.spec, most_sessions=SMALL_SESSIONS)
    plan = plan_selected_sessions(runtime.database, runtime.lake, row)
    assert bound_small_export_shards(row, size) == most >= len(plan_shards(plan))
    assert is_small_export(runtime.database, row) is is_small


def test_sessions_without_frames_make_no_files_of_frames(runtime: Runtime) -> None:
    row = ask(runtime)
    with runtime.database.transaction(write=False) as db:
        size = measure_export_selection(db, row.tenant, row.spec, most_sessions=SMALL_SESSIONS)
    assert (size.workflows, bound_small_export_shards(row, size)) == (1, 1)


def test_a_recount_is_bounded_and_takes_workspaces_in_turn(runtime: Runtime) -> None:
    ours, theirs = awaiting(runtime, WORKSPACE, 23), awaiting(runtime, OTHER, 1)
    recount_awaited_replayability(runtime.database)
    assert counted(runtime, [*ours, *theirs]) == sorted([*ours[:19], *theirs])
    set_replayability(runtime, replayability=1.0, replayability_at=clock.now())
    recount_awaited_replayability(runtime.database)
    # Those that were never counted came first, then those that were counted longest ago.
    waiting = [export_id for export_id in ours if read(runtime, export_id).awaited_sessions is not None]
    assert waiting == ours[15:19]
    assert read(runtime, theirs[0]).awaited_sessions is None
    recount_awaited_replayability(runtime.database)
    assert len(due(runtime, limit=99)) == 24


def test_a_recount_that_takes_long_counts_one_export_of_each_workspace(runtime: Runtime) -> None:
    ours, theirs = awaiting(runtime, WORKSPACE, 3), awaiting(runtime, OTHER, 1)
    recount_awaited_replayability(runtime.database, most_s=0)
    assert counted(runtime, [*ours, *theirs]) == sorted([ours[0], *theirs])
    recount_awaited_replayability(runtime.database, most_s=0)
    assert counted(runtime, [*ours, *theirs]) == sorted([*ours[:2], *theirs])


def test_exports_that_waited_too_long_run_without_a_count(runtime: Runtime) -> None:
    ours = awaiting(runtime, WORKSPACE, 2)
    with runtime.database.transaction(write=True) as db:
        for export_id in ours:
            db.get_one(ExportRow, export_id).created_at -= LONGEST_WAIT + timedelta(seconds=1)
    with noted_statements() as noted:
        recount_awaited_replayability(runtime.database)
    assert [text for text, _ in noted if "replayability_at" in text] == []
    assert due(runtime) == ours


def test_a_run_gives_its_place_back_while_it_waits(runtime: Runtime) -> None:
    (export_id,) = awaiting(runtime, WORKSPACE, 1)
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(ExportRow, export_id)
        # A tag that was set late: the count of the request found nothing.
        row.status, row.awaited_sessions, row.attempt = "running", None, 12
    with runtime.database.transaction(write=True) as db:
        claim = claim_export(runtime.database, db, export_id, owner="run")
    with pytest.raises(ReplayabilityAwaited, match="of 1 session; the next run continues"):
        wait_for_replayability(runtime.database, claim, row, patience_s=0)
    claim.give_back()
    assert due(runtime) == []
    set_replayability(runtime, replayability=1.0, replayability_at=clock.now())
    recount_awaited_replayability(runtime.database)
    assert due(runtime) == [export_id]
    # The waits are no runs in vain.
    assert run_export(runtime, export_id, owner="next").status == "completed"
