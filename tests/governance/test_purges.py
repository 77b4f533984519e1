"""Runs of purges: one at a time, resumed after a kill, patient with stores that are away. Contract §2."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlmodel import col, insert, select

from recorder import clock
from recorder.errors import Unavailable
from recorder.governance.purging.due_steps import FILES_GRACE
from recorder.governance.purging.purge_runs import PURGE_LEASE, find_next_due_time, run_purges
from recorder.governance.purging.referring_batches import ReferringBatches
from recorder.ids import new_id
from recorder.models.governance import PurgeRow
from recorder.models.operations import OutboxRow, SealBatchRow
from recorder.models.webhook import DeliveryRow
from recorder.runtime import Runtime
from recorder.sealing.cleanup import clean_up_after_sealing
from recorder.storage.blobs import Blobs
from recorder.storage.lake import Lake
from recorder.storage.lake_cleanup import LOG_GRACE
from recorder.storage.lake_schemas import LAYOUTS
from recorder.storage.leases import LeaseLost, hold_lease
from recorder.storage.store_regions import StoreAway
from recorder.tenant import Tenant
from tests.support.factories import Caller, assert_problem
from tests.support.purges import count_hits, finish_purges, make_due, open_purges, purge_row, recorded_canary
from tests.support.query_plans import noted_statements, plan_of
from tests.support.recorded_sessions import execute, let_lease_run_out
from tests.support.rewritten_exports import hide_for_purge
from tests.support.sealed_sessions import START, Recording, seal


class Killed(BaseException):
    """The end of a run's process."""


def hard_deleted(caller: Caller) -> tuple[str, str]:
    """Return a sealed canary that was deleted for good: its id and its word."""
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


@pytest.mark.parametrize("store", ["lake_url", "blob_url", "export_url", "cold_url"])
def test_a_purge_waits_for_a_store_that_is_not_mounted(caller: Caller, tmp_path: Path, store: str) -> None:
    runtime = caller.service.runtime
    session_id, word = hard_deleted(caller)
    folder = Path(getattr(runtime.settings, store))
    folder.rename(tmp_path / "mounted")
    folder.mkdir()
    with pytest.raises(StoreAway, match=f"RECORDER_{store.upper()}"):
        finish_purges(runtime)
    assert open_purges(runtime) == [(session_id, "lake")]
    folder.rmdir()
    (tmp_path / "mounted").rename(folder)
    finish_purges(runtime)
    assert count_hits(runtime, word) == 0


def test_what_a_request_under_way_stored_is_found_by_the_last_step(caller: Caller) -> None:
    runtime = caller.service.runtime
    session_id, _ = hard_deleted(caller)
    folders = [f"{kind}/{caller.key.workspace_id}/{session_id}/" for kind in ("frames", "sealing")]
    for folder in folders:
        runtime.blobs.put(f"{folder}frm_late.pack", b"late")
        runtime.blobs.put(f"{folder}.frm_late.pack.req_temporary", b"late")
    finish_purges(runtime)
    assert not [key for folder in folders for key in runtime.blobs.keys(folder)]


def reach_last_step(runtime: Runtime, session_id: str) -> None:
    """Run purges until the last step of one waits."""
    for _ in range(5):
        make_due(runtime)
        run_purges(runtime, "tests")
        if purge_row(runtime, session_id).step == "final_pass":
            return
    raise AssertionError(open_purges(runtime))


def test_the_last_step_waits_for_the_longest_request(caller: Caller) -> None:
    runtime = caller.service.runtime
    session_id, _ = hard_deleted(caller)
    reach_last_step(runtime, session_id)
    run_purges(runtime, "tests")
    purge = purge_row(runtime, session_id)
    assert (purge.step, purge.due_at - purge.requested_at) == ("final_pass", timedelta(seconds=120))
    finish_purges(runtime)


def test_the_last_step_comes_when_entries_of_the_lakes_log_can_be_deleted(caller: Caller) -> None:
    # The exports of the session delayed the purge for some minutes.
    runtime = caller.service.runtime
    session_id, _ = hard_deleted(caller)
    early = clock.now() - timedelta(minutes=5)
    with runtime.database.transaction(write=True) as db:
        purge = db.get_one(PurgeRow, session_id)
        purge.requested_at = early
        db.add(purge)
    began = clock.now()
    reach_last_step(runtime, session_id)
    assert purge_row(runtime, session_id).due_at >= began + LOG_GRACE
    finish_purges(runtime)


def test_rows_that_a_batch_committed_since_go_with_the_last_step(caller: Caller) -> None:
    # The batch was claimed at the moment at which the session was hidden.
    runtime, tenant = caller.service.runtime, Tenant(caller.key.workspace_id, "live")
    canary = recorded_canary(caller)
    rows = runtime.lake.scan("events", tenant).collect().to_arrow().cast(LAYOUTS["events"].schema)
    assert caller.delete(f"/v1/sessions/{canary.session_id}?hard=true").status_code == 204
    reach_last_step(runtime, canary.session_id)
    assert runtime.lake.append("events", tenant, rows, lane="late", number=1)
    with runtime.database.transaction(write=True) as db:
        (batch,) = db.exec(select(SealBatchRow).where(SealBatchRow.workspace_id == tenant.workspace_id))
        batch.session_ids = [canary.session_id]
        db.add(batch)
    finish_purges(runtime)
    assert runtime.lake.scan("events", tenant).collect().is_empty()
    assert count_hits(runtime, canary.word) == 0


@pytest.mark.parametrize(
    ("state", "age", "is_found"),
    [
        ("done", timedelta(days=6), True),
        ("done", timedelta(days=8), False),
        ("open", timedelta(days=8), True),
    ],
)
def test_a_purge_of_days_ago_finds_the_batches_of_its_time(
    caller: Caller, state: str, age: timedelta, is_found: bool
) -> None:
    runtime, session_id, now = caller.service.runtime, new_id("ses"), clock.now()
    of_tenant = {"workspace_id": caller.key.workspace_id, "mode": "live"}
    purge = PurgeRow(
        **of_tenant,
        session_id=session_id,
        workflow="checkout",
        cause="deletion",
        requested_at=now - timedelta(days=5),
        due_at=now,
    )
    batch = SealBatchRow(
        **of_tenant,
        slot=0,
        number=1,
        session_ids=[session_id],
        first_seal_seq=0,
        state=state,
        created_at=now - age,
    )
    with runtime.database.transaction(write=True) as db:
        db.add(batch)
        db.flush()
        batches = ReferringBatches(db, [purge])
        db.delete(batch)
    date = (now - age).strftime("%Y-%m-%d")
    assert batches.dates[session_id] == ({date} if is_found else set())
    assert batches.is_open(purge) == (state == "open")


def make_purge(caller: Caller, session_id: str) -> PurgeRow:
    """Return a purge of a session of the caller's workspace, which is not stored."""
    return PurgeRow(
        session_id=session_id,
        workspace_id=caller.key.workspace_id,
        mode="live",
        workflow="checkout",
        cause="deletion",
        requested_at=clock.now(),
        due_at=clock.now(),
    )


def test_batches_are_read_by_an_index_and_without_columns_that_a_purge_needs_not(caller: Caller) -> None:
    runtime = caller.service.runtime
    with runtime.database.transaction(write=False) as db, noted_statements() as noted:
        ReferringBatches(db, [make_purge(caller, new_id("ses"))])
    reads = [each for each in noted if "FROM seal_batches" in each[0]]
    plans = [plan_of(runtime.database, *each) for each in reads]
    assert "ix_seal_batches_created" in plans[0] and "ix_seal_batches_open" in plans[1]
    assert not any("last_error" in statement for statement, _ in noted)


def test_batches_are_streamed(caller: Caller) -> None:
    runtime, streamed = caller.service.runtime, []

    def note(*parts: Any) -> None:
        if "FROM seal_batches" in parts[2]:
            streamed.append(parts[4].execution_options.get("yield_per", 0))

    with runtime.database.transaction(write=False) as db:
        sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
        ReferringBatches(db, [make_purge(caller, new_id("ses"))])
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", note)
    assert len(streamed) == 2 and all(0 < rows_at_once <= 100 for rows_at_once in streamed)


def test_all_of_many_old_batches_are_forgotten_in_one_pass_by_short_transactions(caller: Caller) -> None:
    runtime, since = caller.service.runtime, clock.now() - timedelta(days=2)
    execute(runtime, "DELETE FROM seal_batches")
    batch = {
        "workspace_id": caller.key.workspace_id,
        "mode": "live",
        "slot": 0,
        "session_ids": [],
        "first_seal_seq": 0,
        "state": "done",
        "created_at": since,
    }
    with runtime.database.transaction(write=True) as db:
        db.connection().execute(
            insert(SealBatchRow), [{**batch, "number": number} for number in range(1_001)]
        )
    with noted_statements() as statements:
        clean_up_after_sealing(runtime, "tests", [])
    deletions = [text for text, _ in statements if text.startswith("DELETE FROM seal_batches")]
    assert len(deletions) == 3 and all("LIMIT" in text for text in deletions)
    with runtime.database.transaction(write=False) as db:
        assert db.exec(select(SealBatchRow)).first() is None


def test_all_of_many_events_for_webhooks_go_with_their_session(caller: Caller) -> None:
    runtime, session_id = caller.service.runtime, caller.make_session()
    of_session = select(OutboxRow).where(OutboxRow.subject_id == session_id)
    with runtime.database.transaction(write=True) as db:
        row = db.exec(of_session).first()
        assert row is not None
        copies = [row.model_dump() | {"id": new_id("evt")} for _ in range(250)]
        db.connection().execute(insert(OutboxRow), copies)
    assert caller.delete(f"/v1/sessions/{session_id}?hard=true").status_code == 204
    with runtime.database.transaction(write=False) as db:
        assert db.exec(of_session).first() is None
    finish_purges(runtime)


def test_one_transaction_deletes_a_bounded_number_of_deliveries(caller: Caller) -> None:
    runtime, session_id = caller.service.runtime, caller.make_session()
    of_session = select(OutboxRow).where(OutboxRow.subject_id == session_id)
    with runtime.database.transaction(write=True) as db:
        row = db.exec(of_session).first()
        assert row is not None
        events = [row.model_dump() | {"id": new_id("evt")} for _ in range(29)]
        db.connection().execute(insert(OutboxRow), events)
        ids = [row.id, *(event["id"] for event in events)]
        deliveries = [
            {
                "id": new_id("dlv"),
                "webhook_id": "whk_none",
                "event_id": event_id,
                "event_type": row.type,
                "attempt": 1,
                "trigger": "automatic",
                "status": "failed",
                "due_ms": 0,
                "created_at": clock.now(),
            }
            for event_id in ids
            for _ in range(100)
        ]
        db.connection().execute(insert(DeliveryRow), deliveries)
    with noted_statements() as statements:
        assert caller.delete(f"/v1/sessions/{session_id}?hard=true").status_code == 204
    deleted = [
        len(values) for text, values in statements if text.startswith("DELETE FROM webhook_deliveries")
    ]
    assert sum(deleted) == 3_000 and max(deleted) == 2_000
    with runtime.database.transaction(write=False) as db:
        assert db.exec(of_session).first() is None
        assert db.exec(select(DeliveryRow).where(col(DeliveryRow.event_id).in_(ids))).first() is None


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


def test_a_hard_delete_that_waits_for_a_store_is_of_its_workspace_and_mode(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = caller.service.runtime
    address = f"/v1/sessions/{recorded_canary(caller).session_id}?hard=true"
    others = [
        caller.service.make_caller(),
        caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id),
    ]

    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("The blob store")

    with monkeypatch.context() as patched:
        patched.setattr("recorder.storage.blobs.Blobs.delete_below", refuse)
        assert_problem(caller.delete(address), 503, "unavailable")
        for other in others:
            assert_problem(other.delete(address), 404, "not_found")
    finish_purges(runtime)


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
