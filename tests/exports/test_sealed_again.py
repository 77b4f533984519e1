"""Exports of sessions whose rows the lake lost: they wait for a new sealing, or fail with what to do."""

import pytest

from recorder.exports.planning.sealed_again import SealingAwaited
from recorder.exports.runner.run import MAX_ATTEMPTS, run_export
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from recorder.sealing import open_sealer
from recorder.sealing.set_aside import reseal
from recorder.storage.lake_schemas import LakePartition
from recorder.tenant import Tenant
from tests.support.export_runs import ask, folder_of, rows_of
from tests.support.recorded_sessions import WORKSPACE, execute, open_desk, session_row
from tests.support.sealing import seal_all


@pytest.fixture
def runtime(on_either_engine: Runtime) -> Runtime:
    return on_either_engine


def seal_sessions(runtime: Runtime, count: int = 2, *, workflow: str = "checkout") -> list[str]:
    """Record and seal sessions of two events."""
    with open_desk(runtime) as desk:
        ids = [desk.record(workflow=workflow) for _ in range(count)]
    seal_all(runtime)
    return ids


def lose_rows(runtime: Runtime, session_id: str) -> None:
    """Let the lake lose the events of a session, and let the sweep find that."""
    row = session_row(runtime, session_id)
    partitions = [LakePartition(row.workflow, row.lake_date or "")]
    runtime.lake.delete_sessions(
        "events", Tenant(WORKSPACE, "live"), partitions=partitions, session_ids=[session_id]
    )
    execute(runtime, "UPDATE sessions SET sealed_at = '2026-01-01 00:00:00.000000'")
    with open_sealer(runtime, "sweep") as sealer:
        assert sealer is not None
        sealer.maintain()


def lose_rows_twice(runtime: Runtime, session_id: str) -> None:
    """Let the lake lose the events of a session again after its new sealing, so that it is set aside."""
    lose_rows(runtime, session_id)
    seal_all(runtime)
    lose_rows(runtime, session_id)
    assert session_row(runtime, session_id).seal_error_code == "rows_differ"


def run(runtime: Runtime, row: ExportRow) -> ExportRow:
    """Run an export, as the same run each time: another one would wait for its lease."""
    return run_export(runtime, row.id, owner="test")


def test_an_export_waits_for_a_session_that_is_to_be_sealed_again(runtime: Runtime) -> None:
    ids = seal_sessions(runtime)
    lose_rows(runtime, ids[0])
    row = ask(runtime)
    with pytest.raises(SealingAwaited, match="rows of 1 session again"):
        run(runtime, row)
    seal_all(runtime)
    done = run(runtime, row)
    assert (done.status, done.error) == ("completed", None)
    assert rows_of(folder_of(runtime, done))["session_id"].unique().sort().to_list() == sorted(ids)


def test_an_export_does_not_wait_for_a_new_sealing_without_end(runtime: Runtime) -> None:
    (session_id,) = seal_sessions(runtime, 1)
    lose_rows(runtime, session_id)
    row = ask(runtime)
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(SealingAwaited):
            run(runtime, row)
    failed = run(runtime, row)
    assert failed.error is not None and failed.error["code"] == "attempts_exhausted"
    assert "until the lake has the rows of 1 session again" in failed.error["message"]


def test_an_export_of_a_session_that_was_set_aside_fails_with_the_command(runtime: Runtime) -> None:
    ids = seal_sessions(runtime)
    lose_rows_twice(runtime, ids[0])
    failed = run(runtime, ask(runtime))
    assert (failed.status, failed.error) == (
        "failed",
        {
            "code": "rows_missing",
            "message": "The lake lost the rows of 1 sealed session, set aside since. The operator checks the "
            f"lake's store and runs `recorder sessions reseal {ids[0]}`. Then create the export again.",
        },
    )
    with runtime.database.transaction(write=True) as db:
        reseal(db, ids[0])
    seal_all(runtime)
    assert run(runtime, ask(runtime)).status == "completed"


def test_the_message_names_three_sessions_at_most(runtime: Runtime) -> None:
    ids = seal_sessions(runtime, 4)
    execute(runtime, "UPDATE sessions SET seal_error_code = 'rows_differ'")
    failed = run(runtime, ask(runtime))
    assert failed.error is not None
    assert f"reseal {' '.join(sorted(ids)[:3])}`; `recorder sessions quarantined`" in failed.error["message"]


def test_sessions_that_an_export_does_not_select_do_not_hold_it_up(runtime: Runtime) -> None:
    ids = seal_sessions(runtime)
    lose_rows(runtime, seal_sessions(runtime, 1, workflow="ship")[0])
    lose_rows_twice(runtime, seal_sessions(runtime, 1, workflow="hire")[0])
    lose_rows(runtime, ids[0])
    done = run(runtime, ask(runtime, filter={"exclude_session_ids": ids[:1]}))
    assert (done.status, done.error) == ("completed", None)
