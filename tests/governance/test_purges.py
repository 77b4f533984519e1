"""Runs of purges: one at a time, resumed after a kill, patient with stores that are away. Contract §2."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest

from recorder import clock
from recorder.errors import Unavailable
from recorder.governance.purging import session_content
from recorder.governance.purging.due_steps import FILES_GRACE
from recorder.governance.purging.purge_runs import PURGE_LEASE, find_next_due_time, run_purges
from recorder.storage.blobs import Blobs
from recorder.storage.lake import Lake
from recorder.storage.leases import LeaseLost, hold_lease
from recorder.tenant import Tenant
from tests.support.factories import Caller, assert_problem
from tests.support.purges import count_hits, finish_purges, make_due, open_purges, purge_row, recorded_canary
from tests.support.recorded_sessions import let_lease_run_out
from tests.support.rewritten_exports import hide_for_purge
from tests.support.sealed_sessions import START, Recording, seal


class Killed(BaseException):
    """The end of a run's process."""


def hard_deleted(caller: Caller) -> tuple[str, str]:
    """A sealed canary that was deleted for good: its id and its word."""
    canary = recorded_canary(caller)
    assert caller.delete(f"/v1/sessions/{canary.session_id}?hard=true").status_code == 204
    return canary.session_id, canary.word


def test_a_second_run_leaves_the_purges_to_the_first(caller: Caller) -> None:
    runtime = caller.service.runtime
    with runtime.database.transaction(write=True) as db:
        held = hold_lease(db, PURGE_LEASE, "first", ttl_ms=60_000)
    assert held is not None
    assert run_purges(runtime, "second") is None
    with runtime.database.transaction(write=True) as db:
        held.release(db)


@pytest.mark.parametrize("part", ["delete_sessions", "delete_dead_files", "clean_log"])
def test_a_run_that_is_killed_is_continued(
    caller: Caller, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = caller.service.runtime
    _, word = hard_deleted(caller)

    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Lake, part, kill)
        with pytest.raises(Killed):
            for _ in range(5):
                make_due(runtime)
                run_purges(runtime, "killed")
    let_lease_run_out(runtime)
    finish_purges(runtime)
    assert count_hits(runtime, word) == 0


def test_a_run_whose_lease_was_taken_writes_nothing_more(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = caller.service.runtime
    session_id, _ = hard_deleted(caller)
    delete = Lake.delete_sessions

    def lose_lease(*arguments: object, **named: object) -> int:
        let_lease_run_out(runtime)
        with runtime.database.transaction(write=True) as db:
            hold_lease(db, PURGE_LEASE, "thief", ttl_ms=1)
        return delete(*arguments, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "delete_sessions", lose_lease)
        make_due(runtime)
        with pytest.raises(LeaseLost):
            run_purges(runtime, "slow")
    assert purge_row(runtime, session_id).step == "lake"
    let_lease_run_out(runtime)
    finish_purges(runtime)


def test_old_files_stay_while_readers_may_open_them(caller: Caller) -> None:
    runtime = caller.service.runtime
    session_id, word = hard_deleted(caller)
    before = clock.now()
    run_purges(runtime, "tests")
    row = purge_row(runtime, session_id)
    assert row.step == "files" and row.due_at >= before + FILES_GRACE - timedelta(seconds=1)
    assert count_hits(runtime, word) > 0
    with runtime.database.transaction(write=False) as db:
        assert find_next_due_time(db) is not None
    finish_purges(runtime)
    assert count_hits(runtime, word) == 0
    with runtime.database.transaction(write=False) as db:
        assert find_next_due_time(db) is None


def test_a_lake_file_that_a_killed_run_left_half_written_goes_with_the_purge(caller: Caller) -> None:
    runtime = caller.service.runtime
    session_id, word = hard_deleted(caller)
    folder = Path(runtime.lake.stored_table("events", Tenant(caller.key.workspace_id, "live")).path)
    (whole,) = folder.glob("workflow=*/**/*.parquet")
    # As kill -9 leaves it: rows, but no footer. The word is in no other file of the lake afterwards.
    cut = whole.with_name("compacted-cut.parquet")
    cut.write_bytes(whole.read_bytes()[:-8] + word.encode())
    with pytest.raises(AssertionError, match="final_pass"):
        finish_purges(runtime)
    assert open_purges(runtime) == [(session_id, "final_pass")] and cut.exists() and not whole.exists()
    os.utime(cut, (time.time() - 180,) * 2)
    finish_purges(runtime)
    assert not cut.exists() and count_hits(runtime, word) == 0


def test_what_a_request_under_way_stored_is_found_by_the_last_step(caller: Caller) -> None:
    runtime = caller.service.runtime
    session_id, _ = hard_deleted(caller)
    folder = session_content.list_content_folders(caller.key.workspace_id, session_id)[0]
    runtime.blobs.put(f"{folder}frm_late.pack", b"late")
    runtime.blobs.put(f"{folder}.frm_late.pack.req_temporary", b"late")
    finish_purges(runtime)
    assert not list(runtime.blobs.keys(folder))


def test_a_hard_delete_that_meets_a_store_away_goes_on_later(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = caller.service.runtime
    canary = recorded_canary(caller)
    address = f"/v1/sessions/{canary.session_id}?hard=true"

    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("The blob store")

    with monkeypatch.context() as patched:
        patched.setattr("recorder.storage.blobs.Blobs.delete_below", refuse)
        assert_problem(caller.delete(address), 503, "unavailable")
        assert caller.get(f"/v1/sessions/{canary.session_id}").status_code == 404
        make_due(runtime)
        report = run_purges(runtime, "tests")
        assert report is not None and report.failed_steps == 1
    assert (canary.session_id, "content") in open_purges(runtime)
    assert caller.delete(address).status_code == 204
    finish_purges(runtime)
    assert count_hits(runtime, canary.word) == 0


def test_a_session_that_fails_keeps_back_no_other_one(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = caller.service.runtime
    canaries = [recorded_canary(caller) for _ in range(3)]
    for canary in canaries:
        hide_for_purge(runtime, canary.session_id)
    delete_below = Blobs.delete_below

    def refuse_one(blobs: Blobs, *prefixes: str) -> int:
        if any(canaries[1].session_id in prefix for prefix in prefixes):
            raise Unavailable("The blob store")
        return delete_below(blobs, *prefixes)

    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "delete_below", refuse_one)
        make_due(runtime)
        report = run_purges(runtime, "tests")
    assert report is not None and report.failed_steps == 1
    assert dict(open_purges(runtime)) == {
        canary.session_id: "content" if number == 1 else "files" for number, canary in enumerate(canaries)
    }
    finish_purges(runtime)
    assert [count_hits(runtime, canary.word) for canary in canaries] == [0, 0, 0]


def test_the_rows_of_many_sessions_leave_a_table_in_one_commit(caller: Caller) -> None:
    runtime = caller.service.runtime
    tenant = Tenant(caller.key.workspace_id, "live")
    doomed: list[str] = []
    for day in range(3):
        recordings = [Recording(sealed_at=START + timedelta(days=day)) for _ in range(4)]
        doomed += seal(runtime, recordings, workspace_id=tenant.workspace_id)[:3]
    before = runtime.lake.version("events", tenant)
    assert before is not None
    for session_id in doomed:
        hide_for_purge(runtime, session_id)
    make_due(runtime)
    run_purges(runtime, "tests")
    assert {step for _, step in open_purges(runtime)} == {"files"}
    assert runtime.lake.version("events", tenant) == before + 1
    left = set(runtime.lake.scan("events", tenant).collect()["session_id"])
    assert len(left) == 3 and not left & {*doomed}
    finish_purges(runtime)
