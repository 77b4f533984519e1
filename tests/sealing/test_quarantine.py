"""Sessions that cannot be sealed: retried, set aside alone, resealed; the others go on. Contract §2."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator
from sqlalchemy import text
from sqlmodel import Session as DbSession
from sqlmodel import col, func, select

from recorder.errors import InvalidState, NotFound, Unavailable
from recorder.memory.storage.indexing import GraphIndexer
from recorder.models.event import EventBatchRow
from recorder.models.operations import AuditRow, OutboxRow, SealBatchRow
from recorder.recording.hot_rows import HOT_ROWS
from recorder.recording.session_stops import stop_session
from recorder.recording.sessions import session_to_wire
from recorder.runtime import Runtime
from recorder.sealing import Sealer, has_sealing_work, open_sealer
from recorder.sealing.lane_scheduling import SealingTimes
from recorder.sealing.set_aside import list_sessions_set_aside, reseal
from recorder.sealing.sweep import sweep_hot_rows
from recorder.storage.lake_schemas import LakePartition
from recorder.tenant import Tenant
from recorder.webhooks.catalogue import payload_schema
from recorder.webhooks.outbox import encode_outbox_event
from tests.support.factories import picture
from tests.support.recorded_sessions import (
    WORKSPACE,
    assert_sealed_exactly_once,
    delete,
    execute,
    let_lease_run_out,
    open_desk,
    outbox_types,
    png_item,
    session_row,
)
from tests.support.sealed_sessions import open_on_either_engine
from tests.support.sealing import seal_all, seal_waiting

OTHER = "wsp_01k0000000000000000000000b"
#: A run that repeats a failed batch at once.
NO_WAIT = SealingTimes(store_retry_after=timedelta(0), batch_retry_after=timedelta(0))

Kill = type("Kill", (BaseException,), {"__doc__": "Stands for the end of the process."})


@pytest.fixture(params=["sqlite", "postgresql"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment of its own, on either engine."""
    yield from open_on_either_engine(request, tmp_path)


def record(runtime: Runtime, count: int = 1, *, frames: bool = True) -> list[str]:
    """Record stopped sessions with two events, and a frame each."""
    with open_desk(runtime) as desk:
        return [desk.record(frames=[png_item(1, picture(n))] if frames else []) for n in range(count)]


def damage_events(runtime: Runtime, session_id: str) -> None:
    """Overwrite the stored batch of a session."""
    execute(
        runtime,
        "UPDATE event_batches SET payload = :junk WHERE session_id = :id",
        junk=b"\0junk",
        id=session_id,
    )


def remove_pictures(runtime: Runtime, session_id: str) -> None:
    """Delete the frame objects of a session."""
    for key in list(runtime.blobs.keys("frames")):
        if session_id in key:
            runtime.blobs.delete(key)


def block_pictures(runtime: Runtime, session_id: str) -> None:
    """Put folders in the place of the frame objects of a session: reading one is an error of the store."""
    for key in list(runtime.blobs.keys("frames")):
        if session_id in key:
            path = Path(runtime.blobs.url, key)
            path.unlink()
            path.mkdir()


@contextmanager
def failing_index(monkeypatch: pytest.MonkeyPatch, session_id: str, error: BaseException) -> Iterator[None]:
    """Let the graph's index fail on every batch with this session, as a defect of ours would."""
    prepare = GraphIndexer.prepare

    def fail(self: GraphIndexer, db: Any, rows: Any, steps: Any) -> Any:
        if any(row.id == session_id for row in rows):
            raise error
        return prepare(self, db, rows, steps)

    with monkeypatch.context() as patch:
        patch.setattr(GraphIndexer, "prepare", fail)
        yield


def set_aside_codes(runtime: Runtime) -> dict[str, str]:
    """Return what is set aside, by session."""
    with runtime.database.transaction(write=False) as db:
        return {item.session_id: item.code for item in list_sessions_set_aside(db)}


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (damage_events, "content_unreadable"),
        (remove_pictures, "content_missing"),
        (block_pictures, "content_unreadable"),
    ],
)
def test_the_session_that_cannot_be_read_is_set_aside_and_the_others_are_sealed(
    runtime: Runtime, damage: Callable[[Runtime, str], None], code: str
) -> None:
    ids = record(runtime, 5)
    damage(runtime, ids[2])
    seal_all(runtime, times=NO_WAIT)
    assert set_aside_codes(runtime) == {ids[2]: code}
    assert_sealed_exactly_once(runtime, [session_id for session_id in ids if session_id != ids[2]])
    row = session_row(runtime, ids[2])
    assert (row.status, row.waiting_since, row.seal_failures) == ("stopped", None, 3)
    with runtime.database.transaction(write=False) as db:
        assert not has_sealing_work(db)


def test_setting_aside_is_reported_once(runtime: Runtime) -> None:
    (session_id,) = record(runtime)
    damage_events(runtime, session_id)
    for _ in range(2):
        seal_all(runtime, times=NO_WAIT)
        assert outbox_types(runtime, session_id).count("session.error") == 1
        with runtime.database.transaction(write=True) as db:
            reseal(db, session_id)
    with runtime.database.transaction(write=False) as db:
        event = db.exec(
            select(OutboxRow).where(OutboxRow.subject_id == session_id, OutboxRow.type == "session.error")
        ).one()
        audited = db.exec(
            select(AuditRow.action).where(AuditRow.resource_id == session_id).order_by(col(AuditRow.number))
        ).all()
    error = {"source": "seal", "name": "content_unreadable", "id": None, "t_ms": None}
    assert event.data["error"] == error
    assert event.data["session"]["seal_error"]["code"] == "content_unreadable"
    # The published schema describes this cause too.
    Draft202012Validator(payload_schema(event.type)).validate(orjson.loads(encode_outbox_event(event)))
    assert list(audited) == ["session.set_aside", "session.reseal"] * 2


def test_a_session_that_was_set_aside_can_be_sealed_once_it_is_whole(runtime: Runtime) -> None:
    ids = record(runtime, 2)
    with runtime.database.transaction(write=False) as db:
        statement = "SELECT payload FROM event_batches WHERE session_id = :id"
        whole = bytes(db.connection().execute(text(statement), {"id": ids[0]}).scalar_one())
    damage_events(runtime, ids[0])
    seal_all(runtime, times=NO_WAIT)
    wire = session_to_wire(session_row(runtime, ids[0]), {})
    assert wire.seal_error is not None and wire.seal_error.code == "content_unreadable"
    execute(
        runtime, "UPDATE event_batches SET payload = :whole WHERE session_id = :id", whole=whole, id=ids[0]
    )
    with runtime.database.transaction(write=True) as db:
        reseal(db, ids[0])
    seal_all(runtime, times=NO_WAIT)
    assert_sealed_exactly_once(runtime, ids)
    assert session_to_wire(session_row(runtime, ids[0]), {}).seal_error is None


def test_only_a_session_that_was_set_aside_is_resealed(runtime: Runtime) -> None:
    (session_id,) = record(runtime)
    with runtime.database.transaction(write=True) as db, pytest.raises(InvalidState):
        reseal(db, session_id)
    with runtime.database.transaction(write=True) as db, pytest.raises(NotFound):
        reseal(db, "ses_missing")


def test_a_batch_that_fails_for_an_unknown_reason_is_halved_until_one_session_is_alone(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = record(runtime, 7, frames=False)
    with failing_index(monkeypatch, ids[4], RuntimeError("a defect")):
        seal_all(runtime, times=NO_WAIT)
    assert set_aside_codes(runtime) == {ids[4]: "content_unreadable"}
    assert_sealed_exactly_once(runtime, [session_id for session_id in ids if session_id != ids[4]])
    assert "RuntimeError" in (session_row(runtime, ids[4]).seal_error_message or "")


def test_what_a_failed_batch_wrote_to_the_lake_is_taken_back(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = record(runtime, 4)
    commit = GraphIndexer.commit

    def fail(self: GraphIndexer, db: Any, prepared: Any, rows: Any) -> Any:
        if any(row.id == ids[1] for row in rows):
            raise RuntimeError("a defect")
        return commit(self, db, prepared, rows)

    with monkeypatch.context() as patch:
        patch.setattr(GraphIndexer, "commit", fail)
        seal_all(runtime, times=NO_WAIT)
    assert set_aside_codes(runtime) == {ids[1]: "content_unreadable"}
    assert_sealed_exactly_once(runtime, [ids[0], *ids[2:]])
    for kind in ("events", "frames", "sessions", "steps"):
        rows = runtime.lake.scan(kind, Tenant(WORKSPACE, "live")).collect()
        assert ids[1] not in rows["session_id"].to_list()


def test_a_session_that_kills_its_run_is_set_aside_alone(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = record(runtime, 4, frames=False)
    kills = 0
    with failing_index(monkeypatch, ids[3], Kill()):
        while True:
            sealer = Sealer(runtime, owner=f"run {kills}", times=NO_WAIT)
            assert sealer.take()
            try:
                seal_waiting(sealer)
                break
            except Kill:
                kills += 1
                sealer._scheduler._keeper.stop()
                sealer._writers.shutdown()
                sealer._digests.close()
                let_lease_run_out(runtime)
            assert kills < 40
        sealer.release()
    assert set_aside_codes(runtime) == {ids[3]: "worker_killed"}
    assert_sealed_exactly_once(runtime, ids[:3])


@pytest.mark.parametrize("is_sealed_before", [False, True])
@pytest.mark.parametrize("store", ["blob_url", "lake_url"])
def test_nothing_is_sealed_or_counted_while_the_folder_of_a_store_is_not_mounted(
    runtime: Runtime, store: str, is_sealed_before: bool
) -> None:
    ids = record(runtime, 3)
    if is_sealed_before:
        seal_all(runtime)
        ids += record(runtime, 3)
    folder = Path(getattr(runtime.settings, store))
    folder.rename(folder.with_name("away"))
    folder.mkdir()
    with open_sealer(runtime, "run", times=NO_WAIT) as sealer:
        assert sealer is not None
        for _ in range(10):
            with pytest.raises(Unavailable, match=f"RECORDER_{store.upper()}"):
                sealer.seal_batch()
            assert not sealer.has_stores()
        folder.rmdir()  # nothing was written to it
        folder.with_name("away").rename(folder)
        seal_waiting(sealer)
    assert set_aside_codes(runtime) == {}
    assert_sealed_exactly_once(runtime, ids)
    assert {session_row(runtime, session_id).seal_failures for session_id in ids} == {0}


def test_a_lane_whose_store_failed_comes_after_the_lanes_that_waited(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = record(runtime, frames=False)
    with open_desk(runtime, workspace_id=OTHER) as desk:
        second = desk.record()
    commit = runtime.lake.commit

    def fail(kind: Any, tenant: Any, *args: Any, **kwargs: Any) -> Any:
        if tenant.workspace_id == WORKSPACE:
            raise Unavailable("The lake")
        return commit(kind, tenant, *args, **kwargs)

    with monkeypatch.context() as patch, open_sealer(runtime, "run", times=NO_WAIT) as sealer:
        assert sealer is not None and sealer.has_stores()
        patch.setattr(runtime.lake, "commit", fail)
        with pytest.raises(Unavailable):
            sealer.seal_batch()
        batch = sealer.seal_batch()
        assert batch is not None and batch.tenant.workspace_id == OTHER
    seal_all(runtime, times=NO_WAIT)
    assert_sealed_exactly_once(runtime, [first])
    assert session_row(runtime, second).status == "sealed"


def test_a_store_that_fails_in_the_middle_counts_as_no_failure(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = record(runtime, 2)

    def fail(*_: Any, **__: Any) -> Any:
        raise Unavailable("The lake")

    with monkeypatch.context() as patch:
        patch.setattr(runtime.lake, "commit", fail)
        with open_sealer(runtime, "run", times=NO_WAIT) as sealer:
            assert sealer is not None
            for _ in range(8):
                with pytest.raises(Unavailable):
                    sealer.seal_batch()
    with runtime.database.transaction(write=False) as db:
        (batch,) = db.exec(select(SealBatchRow))
        assert (batch.failures, batch.begun - batch.ended, len(batch.session_ids)) == (0, 0, 2)
    seal_all(runtime, times=NO_WAIT)
    assert_sealed_exactly_once(runtime, ids)


def test_a_batch_rests_after_its_store_failed(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = record(runtime)
    times = SealingTimes(store_retry_after=timedelta(seconds=50))

    def fail(*_: Any, **__: Any) -> Any:
        raise Unavailable("The lake")

    with open_sealer(runtime, "run", times=times) as sealer:
        assert sealer is not None
        with monkeypatch.context() as patch:
            patch.setattr(runtime.lake, "commit", fail)
            with pytest.raises(Unavailable):
                sealer.seal_batch()
        assert sealer.seal_batch() is None
    execute(runtime, "UPDATE seal_batches SET not_before = created_at")
    seal_all(runtime, times=NO_WAIT)
    assert_sealed_exactly_once(runtime, ids)


def test_a_session_that_is_deleted_is_taken_out_of_its_open_batch(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = record(runtime, 3, frames=False)
    with (
        failing_index(monkeypatch, ids[0], RuntimeError("a defect")),
        open_sealer(runtime, "run", times=NO_WAIT) as sealer,
    ):
        assert sealer is not None
        work = sealer._scheduler.take_lane()
        assert work is not None and sealer._seal_lane_batch(work) is None
    delete(runtime, ids[0])
    with failing_index(monkeypatch, ids[0], RuntimeError("a defect")):
        seal_all(runtime, times=NO_WAIT)
    assert set_aside_codes(runtime) == {}
    assert session_row(runtime, ids[0]).status == "stopped"
    assert_sealed_exactly_once(runtime, ids[1:])


def test_a_session_that_failed_before_is_sealed_alone(runtime: Runtime) -> None:
    ids = record(runtime, 4)
    execute(runtime, "UPDATE sessions SET seal_failures = 1 WHERE id = :id", id=ids[1])
    seal_all(runtime, times=NO_WAIT)
    with runtime.database.transaction(write=False) as db:
        batches = db.exec(select(SealBatchRow).order_by(col(SealBatchRow.number))).all()
    assert [batch.session_ids for batch in batches] == [ids[:1], ids[1:2], ids[2:]]


def test_rows_that_the_lake_lost_are_sealed_again_before_the_sweep(runtime: Runtime) -> None:
    ids = record(runtime, 3)
    seal_all(runtime, times=NO_WAIT)
    lose_rows(runtime, ids[1])
    age(runtime)
    with open_sealer(runtime, "run", times=NO_WAIT) as sealer:
        assert sealer is not None
        done = sealer.maintain()
        assert (done.swept_sessions, done.requeued_sessions) == (2, 1)
        assert session_row(runtime, ids[1]).is_hot
        # What waits to be sealed again is not compared meanwhile.
        assert sealer.maintain().requeued_sessions == 0 and set_aside_codes(runtime) == {}
        seal_waiting(sealer)
        assert sealer.maintain().swept_sessions == 1
    assert_sealed_exactly_once(runtime, ids)
    assert not session_row(runtime, ids[1]).is_hot


def test_a_session_that_is_deleted_while_it_is_compared_is_not_sealed_again(runtime: Runtime) -> None:
    (session_id,) = record(runtime)
    seal_all(runtime, times=NO_WAIT)
    lose_rows(runtime, session_id)
    age(runtime)

    def delete_meanwhile(db: DbSession) -> None:
        db.connection().execute(
            text("UPDATE sessions SET deleted_at = sealed_at WHERE id = :id"), {"id": session_id}
        )

    counts = sweep_hot_rows(runtime, delete_meanwhile)
    assert (counts.swept, counts.requeued) == (0, 0)
    assert session_row(runtime, session_id).waiting_since is None


def test_a_session_whose_rows_are_lost_again_keeps_its_hot_rows(runtime: Runtime) -> None:
    (session_id,) = record(runtime)
    seal_all(runtime, times=NO_WAIT)
    for _ in range(2):
        lose_rows(runtime, session_id)
        age(runtime)
        with open_sealer(runtime, "run", times=NO_WAIT) as sealer:
            assert sealer is not None
            sealer.maintain()
            seal_waiting(sealer)
    assert set_aside_codes(runtime) == {session_id: "rows_differ"}
    row = session_row(runtime, session_id)
    assert (row.status, row.is_hot) == ("sealed", True)
    age(runtime)
    with open_sealer(runtime, "run", times=NO_WAIT) as sealer:
        assert sealer is not None and sealer.maintain().swept_sessions == 0


def count_stored_batches(runtime: Runtime) -> int:
    """Return the number of batches of events in SQL."""
    with runtime.database.transaction(write=False) as db:
        return db.exec(select(func.count()).select_from(EventBatchRow)).one()


def test_a_large_session_is_swept_in_many_transactions_and_another_run_ends_it(
    runtime: Runtime,
) -> None:
    with open_desk(runtime) as desk:
        session_id = desk.record(is_stopped=False)
        for t_ms in range(4):
            desk.add_events(session_id, {"t_ms": t_ms, "type": "click"})
        with runtime.database.transaction(write=True) as db:
            stop_session(db, desk.caller.tenant, session_id)
    seal_all(runtime, times=NO_WAIT)
    age(runtime)
    stored: list[int] = []

    def require_lease(_: Any) -> None:
        stored.append(count_stored_batches(runtime))
        if len(stored) == 5:
            raise Kill

    with pytest.raises(Kill):
        sweep_hot_rows(runtime, require_lease, [rows._replace(most_bytes=1) for rows in HOT_ROWS])
    # The first transaction has the lake serve the session, and each other one deletes a batch.
    assert stored == [5, 5, 4, 3, 2] and count_stored_batches(runtime) == 2
    # The lake alone serves the session from the first deletion on.
    assert not session_row(runtime, session_id).is_hot
    with runtime.database.transaction(write=False) as db:
        assert has_sealing_work(db)
    with open_sealer(runtime, "other", times=NO_WAIT) as sealer:
        assert sealer is not None
        sealer.maintain()
    with runtime.database.transaction(write=False) as db:
        assert count_stored_batches(runtime) == 0 and not has_sealing_work(db)


def lose_rows(runtime: Runtime, session_id: str) -> None:
    """Let the lake lose the events of a session."""
    row = session_row(runtime, session_id)
    runtime.lake.delete_sessions(
        "events",
        Tenant(WORKSPACE, "live"),
        partitions=[LakePartition(row.workflow, row.lake_date or "")],
        session_ids=[session_id],
    )


def age(runtime: Runtime) -> None:
    """Let all sessions have been sealed long ago."""
    execute(runtime, "UPDATE sessions SET sealed_at = '2026-01-01 00:00:00.000000'")
