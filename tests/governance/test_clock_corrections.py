"""Purges and erasures after the clock was set back: they do not wait until it was made up. Contract §7."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from sqlmodel import select

from pipelines.retention import read_purge_sensor_state
from recorder import clock
from recorder.governance.clock_corrections import correct_due_times
from recorder.governance.purging.due_steps import LONGEST_REQUEST
from recorder.governance.requested_removals import run_removals
from recorder.models.governance import ErasureRow, PurgeRow
from recorder.runtime import Runtime
from tests.support.factories import Caller
from tests.support.purges import count_hits, finish_purges, make_due, purge_row, recorded_canary
from tests.support.recorded_sessions import execute

STEP = timedelta(hours=5)


@pytest.fixture(autouse=True)
def no_work(caller: Caller) -> None:
    """Check that no work of an earlier test is open."""
    for table in ("purges", "erasures"):
        execute(caller.service.runtime, f"DELETE FROM {table}")


def move_purges(runtime: Runtime, step: timedelta) -> None:
    """Move the times of open purges, as a clock that is set back moves them into the future."""
    with runtime.database.transaction(write=True) as db:
        for row in db.exec(select(PurgeRow).where(PurgeRow.step != "done")):
            row.requested_at, row.due_at = row.requested_at + step, row.due_at + step
            db.add(row)


@pytest.mark.parametrize("step", ["content", "final_pass"])
def test_a_purge_ends_although_the_clock_was_set_back(caller: Caller, step: str) -> None:
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    assert caller.delete(f"/v1/sessions/{canary.session_id}?hard=true").status_code == 204
    while step == "final_pass" and purge_row(runtime, canary.session_id).step != step:
        make_due(runtime)
        run_removals(runtime, "tests")
    move_purges(runtime, STEP)
    assert read_purge_sensor_state(runtime) == "a step is due"
    run_removals(runtime, "tests")
    purge = purge_row(runtime, canary.session_id)
    assert purge.requested_at <= clock.now() and purge.due_at <= clock.now() + LONGEST_REQUEST
    assert read_purge_sensor_state(runtime) == "no step is due"
    finish_purges(runtime)
    assert count_hits(runtime, canary.word) == 0


def test_a_pause_of_minutes_is_kept(caller: Caller) -> None:
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    assert caller.delete(f"/v1/sessions/{canary.session_id}?hard=true").status_code == 204
    move_purges(runtime, timedelta(minutes=10))
    before = purge_row(runtime, canary.session_id)
    assert read_purge_sensor_state(runtime) == "no step is due"
    correct_due_times(runtime.database)
    assert purge_row(runtime, canary.session_id) == before
    move_purges(runtime, timedelta(minutes=-10))
    finish_purges(runtime)


def test_entries_of_the_lakes_log_from_before_the_step_are_deleted(caller: Caller) -> None:
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    assert caller.delete(f"/v1/sessions/{canary.session_id}?hard=true").status_code == 204
    while purge_row(runtime, canary.session_id).step != "final_pass":
        make_due(runtime)
        run_removals(runtime, "tests")
    table = f"{caller.key.workspace_id}/live/events"
    entries = list(Path(runtime.lake.url, table, "_delta_log").glob("*.json"))
    ahead = time.time() + STEP.total_seconds()
    for entry in entries:
        os.utime(entry, (ahead, ahead))
    finish_purges(runtime)
    assert len(entries) > 1 and sum(entry.exists() for entry in entries) <= 1
    assert count_hits(runtime, canary.word) == 0


def test_an_erasure_is_searched_again_although_the_clock_was_set_back(caller: Caller) -> None:
    runtime, canary = caller.service.runtime, recorded_canary(caller)
    answer = caller.post("/v1/privacy/erasure", {"subject": canary.word, "scope": "all"})
    assert answer.status_code == 202
    run_removals(runtime, "tests")
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(ErasureRow, answer.json()["id"])
        assert row.second_search_at is not None
        row.created_at, row.second_search_at = row.created_at + STEP, row.second_search_at + STEP
        db.add(row)
    finish_purges(runtime)
    assert read_purge_sensor_state(runtime) == "a step is due"
    run_removals(runtime, "tests")
    with runtime.database.transaction(write=False) as db:
        second = db.get_one(ErasureRow, answer.json()["id"]).second_search_at
    assert second is not None and second <= clock.now() + LONGEST_REQUEST
