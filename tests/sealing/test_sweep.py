"""Sweep of hot rows: workspaces in turn, few reads of the lake, errors of one apart. Design §3."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, insert, select, update

from recorder import clock
from recorder.errors import Unavailable
from recorder.models.event import EventBatchRow
from recorder.models.operations import IdempotencyRow, SealPortionRow, SweepRow
from recorder.models.session import SessionRow
from recorder.recording.hot_rows import HOT_ROWS
from recorder.runtime import Runtime
from recorder.sealing.cleanup import clean_up_after_sealing
from recorder.sealing.portions import store_portion_state
from recorder.sealing.sweep import has_rows_to_sweep, sweep_hot_rows
from recorder.storage.blobs import Blobs
from recorder.storage.lake import Lake
from recorder.storage.lake_tables import LakeTable
from tests.support.query_plans import noted_statements, plan_of
from tests.support.recorded_sessions import execute, session_row
from tests.support.sealed_sessions import Recording, seal

BUSY = "wsp_01k0000000000000000000000a"
OTHER = "wsp_01k0000000000000000000000b"


@pytest.fixture(autouse=True)
def no_hot_rows(runtime: Runtime) -> None:
    """Check that no session of an earlier test waits."""
    execute(runtime, "DELETE FROM sweeps")
    with runtime.database.transaction(write=True) as db:
        db.exec(update(SessionRow).values(is_hot=False))


def seal_hot(runtime: Runtime, workspace_id: str, *workflows: str, hours: int = 2) -> list[str]:
    """Return sealed sessions of these workflows whose hot rows are due to be deleted."""
    at = clock.now() - timedelta(hours=hours)
    recordings = [Recording(workflow=workflow, sealed_at=at) for workflow in workflows]
    ids = seal(runtime, recordings, workspace_id=workspace_id)
    with runtime.database.transaction(write=True) as db:
        db.exec(update(SessionRow).where(col(SessionRow.id).in_(ids)).values(is_hot=True))
    return ids


def sweep(runtime: Runtime, **options: Any) -> tuple[int, int]:
    """Return the numbers of sessions that a pass swept, and that it queued again."""
    counts = sweep_hot_rows(runtime, lambda _: None, **options)
    return counts.swept, counts.requeued


def list_hot(runtime: Runtime, ids: list[str]) -> set[str]:
    """Return those of some sessions that still have their hot rows."""
    return {session_id for session_id in ids if session_row(runtime, session_id).is_hot}


@contextmanager
def noted_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the workspaces whose sessions the lake counts, one for each table and call."""
    count, noted = Lake.count_session_rows, list[str]()

    def note(lake: Lake, kind: Any, tenant: Any, **named: Any) -> dict[str, int]:
        noted.append(tenant.workspace_id)
        return count(lake, kind, tenant, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "count_session_rows", note)
        yield noted


def test_sessions_of_many_workflows_are_counted_by_one_read_of_each_table(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = seal_hot(runtime, BUSY, *(f"flow_{number}" for number in range(200)))
    opened, open_table = [], LakeTable.open

    def note(table: LakeTable, version: int | None = None) -> Any:
        opened.append(table.path)
        return open_table(table, version)

    monkeypatch.setattr(LakeTable, "open", note)
    assert sweep(runtime) == (200, 0)
    assert len(opened) == 3 and len(set(opened)) == 3
    assert list_hot(runtime, ids) == set()


def test_a_backlog_of_one_workspace_does_not_delay_another_one(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal_hot(runtime, BUSY, *["checkout"] * 450)
    (later,) = seal_hot(runtime, OTHER, "checkout", hours=1)
    with noted_counts(monkeypatch) as noted:
        assert sweep(runtime) == (451, 0)
    # 200 sessions in a turn, each of three tables; both workspaces had their turn when a second one began.
    assert noted[:6] in ([BUSY] * 3 + [OTHER] * 3, [OTHER] * 3 + [BUSY] * 3)
    assert noted.count(BUSY) == 9
    assert not session_row(runtime, later).is_hot


def test_rows_of_a_large_session_do_not_delay_another_workspace(runtime: Runtime) -> None:
    (large,) = seal_hot(runtime, BUSY, "checkout")
    (other,) = seal_hot(runtime, OTHER, "checkout", hours=1)
    batch = {"session_id": large, "n": 1, "t_min": 0, "t_max": 0, "first_id": "evt_1", "received_ms": 0}
    rows = [batch | {"first_position": number, "payload": b"x"} for number in range(500)]
    with runtime.database.transaction(write=True) as db:
        db.connection().execute(insert(EventBatchRow), rows)
    writes: list[tuple[bool, bool]] = []

    def note(_: Any) -> None:
        writes.append((session_row(runtime, large).is_hot, session_row(runtime, other).is_hot))

    tables = [table._replace(most=1) for table in HOT_ROWS]
    sweep_hot_rows(runtime, note, tables)
    # The other one is served by the lake before the last of the 500 rows is deleted.
    assert writes[-1] == (False, False) and len(writes) > 500
    assert writes.index((False, False)) < len(writes) - 1
    with runtime.database.transaction(write=False) as db:
        assert db.exec(select(EventBatchRow).where(col(EventBatchRow.session_id) == large)).first() is None
        assert db.exec(select(SweepRow)).all() == []


def test_a_damaged_partition_keeps_back_its_sessions_alone(runtime: Runtime) -> None:
    damaged, whole = seal_hot(runtime, BUSY, "damaged", "whole_one")
    (other,) = seal_hot(runtime, OTHER, "checkout", hours=1)
    (file,) = Path(runtime.lake.url, BUSY, "live", "events").glob("workflow=damaged/*/*.parquet")
    content = file.read_bytes()
    file.write_bytes(content[:100])
    assert sweep(runtime) == (2, 0)
    assert list_hot(runtime, [damaged, whole, other]) == {damaged}
    assert sweep(runtime) == (0, 0)
    file.write_bytes(content)
    assert sweep(runtime) == (1, 0)


def test_a_workspace_whose_table_cannot_be_read_delays_no_other_one(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = seal_hot(runtime, BUSY, *["checkout"] * 3)
    (other,) = seal_hot(runtime, OTHER, "checkout", hours=1)
    count = Lake.count_session_rows

    def fail(lake: Lake, kind: Any, tenant: Any, **named: Any) -> dict[str, int]:
        if tenant.workspace_id == BUSY:
            raise RuntimeError("a defect")
        return count(lake, kind, tenant, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "count_session_rows", fail)
        assert sweep(runtime) == (1, 0)
    assert list_hot(runtime, [*broken, other]) == {*broken}
    assert sweep(runtime) == (3, 0)


def test_a_pass_ends_when_its_time_is_up(runtime: Runtime) -> None:
    seal_hot(runtime, BUSY, "checkout")
    counts = sweep_hot_rows(runtime, lambda _: None, longest_s=0)
    assert (counts.swept, counts.is_cut) == (0, True)
    identity = {"workspace_id": BUSY, "mode": "live", "method": "POST", "path": "/v1/sessions", "key": "old"}
    made = {"status": 201, "answer": b"", "created_at": clock.now() - timedelta(days=2)}
    with runtime.database.transaction(write=True) as db:
        db.add(IdempotencyRow(**identity, **made, body_digest=b""))
    done = clean_up_after_sealing(runtime, "tests", [])
    assert (done.swept_sessions, done.dropped_answers, done.is_sweep_cut) == (1, 1, False)


def test_sessions_to_sweep_are_found_by_their_index(runtime: Runtime) -> None:
    seal_hot(runtime, BUSY, "checkout")
    with runtime.database.transaction(write=False) as db:
        assert has_rows_to_sweep(db)
    with noted_statements() as noted:
        sweep(runtime)
    reads = [each for each in noted if "FROM sessions" in each[0] and "sealed_at" in each[0]]
    plans = [plan_of(runtime.database, *each) for each in reads if "is_hot AND" in each[0]]
    assert len(plans) >= 2
    for plan in plans:
        assert "ix_sessions_to_sweep" in plan
        assert "Seq Scan on sessions" not in plan


def test_progress_that_cannot_be_deleted_stops_no_sweep_and_no_other_deletion(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = seal_hot(runtime, BUSY, "checkout")
    kept, gone = "ses_01k0000000000000000000000a", "ses_01k0000000000000000000000b"
    with runtime.database.transaction(write=True) as db:
        for session_id in (kept, gone):
            store_portion_state(db, session_id, 0, "2024-01-01", {"object": f"sealing/{session_id}"})
    delete = Blobs.delete

    def refuse(blobs: Blobs, key: str) -> None:
        if key.endswith(kept):
            raise Unavailable("The blob store")
        delete(blobs, key)

    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "delete", refuse)
        assert clean_up_after_sealing(runtime, "tests", []).swept_sessions == 1
    assert list_hot(runtime, ids) == set()
    with runtime.database.transaction(write=False) as db:
        assert list(db.exec(select(SealPortionRow.session_id))) == [kept]
    clean_up_after_sealing(runtime, "tests", [])
    with runtime.database.transaction(write=False) as db:
        assert not list(db.exec(select(SealPortionRow)))
