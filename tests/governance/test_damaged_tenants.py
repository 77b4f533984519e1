"""Damage in one workspace: purges, erasures and retention of the others go on. Contract §2, §7."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from recorder import clock
from recorder.governance.purging.purge_runs import run_purges
from recorder.governance.requested_removals import run_removals
from recorder.governance.retention import run_retention
from recorder.governance.table_rewrites import rewrite_tables
from recorder.models.governance import ErasureRow, PurgeRow
from recorder.runtime import Runtime
from recorder.sealing import Sealer
from tests.support.completed_work import patch
from tests.support.delayed_lake import DelayedLake
from tests.support.factories import Caller, stored_rows
from tests.support.purges import (
    Canary,
    count_hits,
    finish_purges,
    make_due,
    open_purges,
    purge_row,
    recorded_canary,
)
from tests.support.recorded_sessions import execute, session_row

#: Steps of a purge, each of which a run ends when it is due.
_STEPS = 6


def hard_delete(caller: Caller, canary: Canary) -> None:
    """Delete a session for good."""
    assert caller.delete(f"/v1/sessions/{canary.session_id}?hard=true").status_code == 204


def run_steps(runtime: Runtime) -> int:
    """Run purges until a healthy one has ended, whatever others wait for; return the failed steps."""
    failed = 0
    for _ in range(_STEPS):
        make_due(runtime)
        report = run_purges(runtime, "tests")
        assert report is not None
        failed += report.failed_steps
    return failed


def find_files(caller: Caller, kind: str, pattern: str) -> list[Path]:
    """Return the files of a table of the caller's workspace, the oldest first."""
    table = Path(caller.service.runtime.lake.url) / caller.key.workspace_id / "live" / kind
    return sorted(table.glob(pattern), key=lambda path: path.stat().st_mtime_ns)


def damage_log(caller: Caller) -> Path:
    """Write an entry without a table's actions over the newest one of a log; return its path."""
    entry = find_files(caller, "events", "_delta_log/*.json")[-1]
    entry.write_bytes(b'{"add":{"path":5}}\n')
    return entry


def damage_data(caller: Caller) -> Path:
    """Cut a data file that holds rows of the session; return its path."""
    file = find_files(caller, "frames", "*/*/*.parquet")[-1]
    file.write_bytes(file.read_bytes()[:100])
    return file


@pytest.mark.parametrize("damage", [damage_log, damage_data])
def test_a_damaged_table_keeps_back_the_purges_of_its_workspace_alone(
    caller: Caller, damage: Callable[[Caller], Path]
) -> None:
    runtime, healthy = caller.service.runtime, caller.service.make_caller()
    recorded_canary(caller)
    broken, whole = recorded_canary(caller), recorded_canary(healthy)
    never_sealed = recorded_canary(caller, is_sealed=False)
    contents = {
        path: path.read_bytes()
        for kind in ("events", "frames")
        for path in find_files(caller, kind, "**/*.*")
    }
    damaged = damage(caller)
    for owner, canary in ((caller, broken), (caller, never_sealed), (healthy, whole)):
        hard_delete(owner, canary)
    assert run_steps(runtime) == _STEPS
    assert [session_id for session_id, _ in open_purges(runtime)] == [broken.session_id]
    damaged.write_bytes(contents[damaged])
    finish_purges(runtime)
    assert [count_hits(runtime, canary.word) for canary in (whole, never_sealed, broken)] == [0, 0, 0]


def test_a_damaged_partition_keeps_back_the_purges_of_its_workflow_alone(caller: Caller) -> None:
    runtime = caller.service.runtime
    whole = [recorded_canary(caller, workflow=workflow) for workflow in ("refund", "returns")]
    broken = recorded_canary(caller)
    (file,) = find_files(caller, "frames", "workflow=checkout/*/*.parquet")
    content = file.read_bytes()
    file.write_bytes(content[:100])
    for canary in (*whole, broken):
        hard_delete(caller, canary)
    assert run_steps(runtime) == _STEPS
    assert [session_id for session_id, _ in open_purges(runtime)] == [broken.session_id]
    file.write_bytes(content)
    finish_purges(runtime)
    assert [count_hits(runtime, canary.word) for canary in (*whole, broken)] == [0, 0, 0]


def test_a_step_that_fails_waits_longer_each_time(caller: Caller) -> None:
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    entry = find_files(caller, "events", "_delta_log/*.json")[-1]
    content = entry.read_bytes()
    damage_log(caller)
    hard_delete(caller, canary)
    pauses = []
    for age in (timedelta(0), timedelta(minutes=4), timedelta(hours=4)):
        with runtime.database.transaction(write=True) as db:
            row = db.get_one(PurgeRow, canary.session_id)
            row.requested_at = row.due_at = clock.now() - age
            db.add(row)
        run_purges(runtime, "tests")
        left = purge_row(runtime, canary.session_id).due_at - clock.now()
        pauses.append(round(left / timedelta(seconds=30)))
    assert pauses == [1, 2, 20]
    entry.write_bytes(content)
    finish_purges(runtime)


def test_a_purge_that_comes_later_finds_the_rows_of_its_batch(caller: Caller) -> None:
    # Both sessions are deleted while a run has prepared their rows; one purge ends before the other.
    runtime = caller.service.runtime
    first, second = (recorded_canary(caller, is_sealed=False) for _ in range(2))

    def delete_both() -> None:
        for canary in (first, second):
            hard_delete(caller, canary)

    sealer = Sealer(replace(runtime, lake=DelayedLake(runtime.lake.url, delete_both)), owner="late")
    assert sealer.take()
    sealer.seal_batch()
    sealer.release()
    later = clock.now() + timedelta(hours=1)
    with runtime.database.transaction(write=True) as db:
        waiting = db.get_one(PurgeRow, second.session_id)
        waiting.due_at = later
        db.add(waiting)
    assert run_purges(runtime, "tests") is not None
    assert purge_row(runtime, first.session_id).step == "files"
    finish_purges(runtime)
    assert [count_hits(runtime, canary.word) for canary in (first, second)] == [0, 0]


def test_a_cold_store_that_is_away_delays_no_other_work(caller: Caller, tmp_path: Path) -> None:
    runtime, other = caller.service.runtime, caller.service.make_caller()
    framed, expired = recorded_canary(caller), recorded_canary(other)
    patch(other, "/v1/workspaces/current", {"retention": {"events_days": 95}})
    execute(runtime, "UPDATE outbox SET dispatched_at = '2026-01-01 00:00:00'")
    at = clock.now() + timedelta(days=100)
    blocked = tmp_path / "no-folder"
    blocked.write_text("a file, where a folder should be")
    away = replace(runtime, settings=replace(runtime.settings, cold_url=str(blocked)))
    report = run_retention(away, "tests", at=at)
    assert report is not None
    failed = [(failure.workspace_id, failure.subject) for failure in report.failures]
    assert (caller.key.workspace_id, "frames to archive") in failed
    assert {subject for _, subject in failed} == {
        "frames to archive",
        "objects of uploads that never committed",
    }
    assert purge_row(runtime, expired.session_id).cause == "retention"
    assert stored_rows(runtime)["rows"]["outbox"] == 0
    report = run_retention(runtime, "tests", at=at)
    assert report is not None and report.failures == []
    assert session_row(runtime, framed.session_id).frames_archived_at is not None
    finish_purges(runtime)


def test_an_erasure_that_cannot_be_searched_stops_no_other_removal(caller: Caller) -> None:
    runtime, other = caller.service.runtime, caller.service.make_caller()
    body = {"subject": "ada", "scope": "all"}
    erased = other.make_session(actor={"id": "ada", "kind": "human"})
    broken, whole = (each.post("/v1/privacy/erasure", body).json()["id"] for each in (caller, other))
    subject = _read_subject(runtime, broken)
    _write_subject(runtime, broken, subject[:-1] + bytes([subject[-1] ^ 1]))
    deleted = recorded_canary(caller)
    hard_delete(caller, deleted)
    for _ in range(_STEPS):
        make_due(runtime)
        removals = run_removals(runtime, "tests")
        assert removals.error is not None
    assert open_purges(runtime) == []
    rewrite_tables(runtime, "tests")
    assert other.get(f"/v1/privacy/erasure/{whole}").json()["status"] == "completed"
    assert other.get(f"/v1/sessions/{erased}").status_code == 404
    _write_subject(runtime, broken, subject)
    assert run_removals(runtime, "tests").error is None
    make_due(runtime)
    assert run_removals(runtime, "tests").error is None
    rewrite_tables(runtime, "tests")
    assert caller.get(f"/v1/privacy/erasure/{broken}").json()["status"] == "completed"


def _read_subject(runtime: Runtime, erasure_id: str) -> bytes:
    with runtime.database.transaction(write=False) as db:
        return db.get_one(ErasureRow, erasure_id).subject


def _write_subject(runtime: Runtime, erasure_id: str, subject: bytes) -> None:
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(ErasureRow, erasure_id)
        row.subject = subject
        db.add(row)
