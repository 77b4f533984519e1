"""Hard delete: what is gone at once, what soon, and to the last byte. Spec §4.1; contract §2 (Delete)."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlmodel import insert, select

from recorder import clock
from recorder.audit.log import Origin
from recorder.governance.holds import add_hold, remove_hold
from recorder.governance.purging.purge_runs import run_purges
from recorder.governance.retention import HELD, run_retention
from recorder.ids import new_id
from recorder.models.memory import GraphVersionRow, SessionPathRow
from recorder.models.operations import IdempotencyRow, OutboxRow, SealBatchRow
from recorder.models.replay import ReplayRow
from recorder.runtime import Runtime
from recorder.sealing import Sealer
from recorder.sealing.lanes import Lane
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import LAYOUTS
from recorder.storage.lake_tables import LakeAhead
from recorder.tenant import Tenant
from tests.support.completed_work import delivering, make_webhook
from tests.support.delayed_lake import DelayedLake
from tests.support.factories import Caller, assert_problem, stored_rows
from tests.support.purges import (
    count_hits,
    finish_purges,
    make_due,
    open_purges,
    purge_row,
    record_live_replay,
    recorded_canary,
)
from tests.support.two_click_sessions import sealed_run
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Answer, running_receiver


@pytest.mark.parametrize("state", ["recording", "stopped", "sealed", "deleted"])
def test_a_hard_delete_leaves_no_byte_of_a_session(caller: Caller, state: str) -> None:
    runtime = caller.service.runtime
    finish_purges(runtime)  # those of other tests
    other = recorded_canary(caller)
    canary = recorded_canary(
        caller, is_stopped=state != "recording", is_sealed=state in ("sealed", "deleted")
    )
    caller.post("/v1/memory/similar", {"session_id": other.session_id}, key="similar")
    if state == "deleted":
        assert caller.delete(f"/v1/sessions/{canary.session_id}").status_code == 204
    assert count_hits(runtime, canary.word) > 5
    kept = count_hits(runtime, other.word)
    answer = caller.delete(f"/v1/sessions/{canary.session_id}?hard=true")
    assert (answer.status_code, answer.content) == (204, b"")
    # Rows and objects are gone when it answers.
    runtime.database.truncate_log()
    assert not list(runtime.blobs.keys(f"frames/{caller.key.workspace_id}/{canary.session_id}"))
    assert caller.get(f"/v1/sessions/{canary.session_id}").status_code == 404
    report = finish_purges(runtime)
    assert report.sessions == 1
    assert count_hits(runtime, canary.word) == 0
    # All that is missing of the other session is the answer of `similar`.
    assert kept - 1 <= count_hits(runtime, other.word) <= kept
    assert caller.get(f"/v1/sessions/{other.session_id}?include=events").json()["event_count"] == 2


def test_no_kept_answer_shows_a_deleted_session(caller: Caller) -> None:
    runtime = caller.service.runtime
    other, canary = recorded_canary(caller), recorded_canary(caller)
    events = ["session.created", "replay.queued", "recovery.started"]
    with running_receiver(Answer(204)) as receiver, delivering(caller):
        webhook = make_webhook(caller, url=f"{receiver.url}/hooks", events=events)
        address = f"/v1/webhooks/{webhook['id']}/deliveries"
        caller.post(f"/v1/sessions/{canary.session_id}/tags", {"name": "error"}, key="error")
        body = {"session_id": canary.session_id, "sandbox": "dry"}
        against = {"session_id": canary.session_id}
        answers = [
            caller.post("/v1/replays", {**body, "mode": "full"}, key="replay"),
            caller.post(
                "/v1/replays",
                {**body, "mode": "full", "session_id": other.session_id, "against": against},
                key="against",
            ),
            caller.post("/v1/recoveries", body, key="recovery"),
        ]
        assert [answer.status_code for answer in answers] == [202] * 3, [each.text for each in answers]
        wait_for(lambda: len(caller.get(address).json()["data"]) == len(answers))
    records = caller.get(address).json()["data"]
    again = [caller.post(f"{address}/{record['id']}/redeliver", key=record["id"]) for record in records]
    assert [answer.status_code for answer in again] == [202] * 3
    caller.post("/v1/sessions:batch_stop", {"ids": [canary.session_id, other.session_id]}, key="stop")
    assert len(_kept_answers_with(runtime, canary.session_id)) >= 10
    others = _kept_answers_with(runtime, other.word)
    assert caller.delete(f"/v1/sessions/{canary.session_id}?hard=true").status_code == 204
    assert _kept_answers_with(runtime, canary.session_id) == []
    assert _kept_answers_with(runtime, other.word) == others != []


def test_answers_of_other_workspaces_and_modes_are_kept(caller: Caller) -> None:
    others = [
        caller.service.make_caller(),
        caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id),
    ]
    body = {"ids": [caller.make_session()]}
    for other in others:
        other.post("/v1/sessions:batch_stop", body, key="stop")
    assert caller.delete(f"/v1/sessions/{body['ids'][0]}?hard=true").status_code == 204
    again = [other.post("/v1/sessions:batch_stop", body, key="stop") for other in others]
    assert [answer.headers.get("Idempotent-Replayed") for answer in again] == ["true", "true"]


def test_many_answers_are_deleted_by_short_transactions_and_only_by_a_purge(caller: Caller) -> None:
    runtime, session_id = caller.service.runtime, caller.make_session()
    first = caller.post("/v1/sessions:batch_stop", {"ids": [session_id]}, key="k")
    with runtime.database.transaction(write=True) as db:
        conditions = (
            IdempotencyRow.workspace_id == caller.key.workspace_id,
            IdempotencyRow.path != "/v1/sessions",
        )
        columns = db.exec(select(IdempotencyRow).where(*conditions)).one().model_dump()
        db.connection().execute(
            insert(IdempotencyRow), [{**columns, "key": f"{number:064}"} for number in range(1_200)]
        )
    deleted: list[int] = []

    def note(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("DELETE FROM idempotency_keys") and "path" in statement:
            deleted.append(cursor.rowcount)

    sqlalchemy.event.listen(sqlalchemy.Engine, "after_cursor_execute", note)
    try:
        assert caller.delete(f"/v1/sessions/{session_id}").status_code == 204
        assert deleted == []
        again = caller.post("/v1/sessions:batch_stop", {"ids": [session_id]}, key="k")
        assert first.json()["stopped"] == again.json()["failed"] == 1
        deleted.clear()
        assert caller.delete(f"/v1/sessions/{session_id}?hard=true").status_code == 204
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "after_cursor_execute", note)
    assert [count for count in deleted if count] == [500, 500, 201]


def _kept_answers_with(runtime: Runtime, text: str) -> list[str]:
    """Return the addresses of stored answers that hold a text."""
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(IdempotencyRow.path, IdempotencyRow.answer)).all()
    return sorted(path for path, answer in rows if text.encode() in (answer or b""))


def test_rows_and_objects_are_gone_when_a_hard_delete_answers(caller: Caller) -> None:
    runtime = caller.service.runtime
    canary = recorded_canary(caller, is_sealed=False)
    before = stored_rows(runtime)["rows"]
    assert before["event_batches"] and before["outbox"]
    caller.delete(f"/v1/sessions/{canary.session_id}?hard=true")
    with runtime.database.transaction(write=False) as db:
        for table in ("event_batches", "event_keys", "frames", "tags", "batch_keys", "session_statuses"):
            query = f"SELECT count(*) FROM {table} WHERE session_id = '{canary.session_id}'"
            assert db.connection().exec_driver_sql(query).scalar() == 0, table
    assert purge_row(runtime, canary.session_id).step == "lake"


def test_a_second_hard_delete_finds_nothing(caller: Caller) -> None:
    session_id = caller.make_session()
    address = f"/v1/sessions/{session_id}?hard=true"
    assert caller.delete(address).status_code == 204
    assert_problem(caller.delete(address), 404, "not_found")
    finish_purges(caller.service.runtime)
    assert_problem(caller.delete(address), 404, "not_found")


def test_a_foreign_session_is_not_deleted_for_good(caller: Caller) -> None:
    session_id = caller.make_session()
    for other in (
        caller.service.make_caller(),
        caller.service.make_caller(workspace_id=caller.key.workspace_id, mode="test"),
    ):
        assert_problem(other.delete(f"/v1/sessions/{session_id}?hard=true"), 404, "not_found")
    assert caller.get(f"/v1/sessions/{session_id}").status_code == 200


@pytest.mark.parametrize("kind", ["session", "tag"])
def test_a_held_session_is_not_deleted_for_good(caller: Caller, kind: str) -> None:
    session_id = caller.make_session()
    caller.post(f"/v1/sessions/{session_id}/tags", {"name": "legal"})
    value = session_id if kind == "session" else "legal"
    origin = Origin.operator(caller.key.workspace_id)
    database = caller.service.runtime.database
    with database.transaction(write=True) as db:
        assert add_hold(db, origin, kind=kind, value=value)  # type: ignore[arg-type]
    address = f"/v1/sessions/{session_id}?hard=true"
    problem = assert_problem(caller.delete(address), 409, "invalid_state")
    assert "it is held. Ask the operator to end the hold" in problem["detail"]
    assert problem["current_status"] == "recording"
    assert caller.get(f"/v1/sessions/{session_id}").status_code == 200
    with database.transaction(write=True) as db:
        remove_hold(db, origin, kind=kind, value=value)  # type: ignore[arg-type]
    assert caller.delete(address).status_code == 204


def test_the_audit_log_keeps_the_id_and_counts_the_purge(caller: Caller) -> None:
    session_id = caller.make_session()
    caller.delete(f"/v1/sessions/{session_id}?hard=true")
    finish_purges(caller.service.runtime)
    entries = caller.get("/v1/audit").json()["data"]
    assert [(entry["action"], entry["resource"]["id"], entry["details"]) for entry in entries] == [
        ("session.delete", session_id, {"hard": True}),
        ("session.purge", caller.key.workspace_id, {"sessions": 1, "causes": {"hard_delete": 1}}),
    ]


def test_a_hard_delete_subtracts_the_session_from_the_graph(caller: Caller) -> None:
    keep, gone = recorded_canary(caller), recorded_canary(caller)
    path = "/v1/memory/paths?workflow=checkout"
    assert sum(item["session_count"] for item in caller.get(path).json()["data"]) == 2
    caller.delete(f"/v1/sessions/{gone.session_id}?hard=true")
    finish_purges(caller.service.runtime)
    assert sum(item["session_count"] for item in caller.get(path).json()["data"]) == 1
    graph = caller.get("/v1/memory/graph?workflow=checkout").text
    # A text of one session alone names no node.
    assert keep.word not in graph and gone.word not in graph
    with caller.service.runtime.database.transaction(write=False) as db:
        ids = set(db.exec(select(SessionPathRow.session_id)))
        kinds = db.exec(
            select(GraphVersionRow.kind).where(GraphVersionRow.workspace_id == caller.key.workspace_id)
        ).all()
    assert gone.session_id not in ids and "purge" in kinds
    assert caller.get("/v1/workflows/checkout").json()["session_count"] == 1


def test_rows_of_a_batch_that_lands_after_the_delete_are_deleted_too(caller: Caller) -> None:
    # Cover case 87: the session is deleted while a run has its rows prepared.
    runtime = caller.service.runtime
    canary = recorded_canary(caller, is_sealed=False)
    landed: list[str] = []

    def delete() -> None:
        assert caller.delete(f"/v1/sessions/{canary.session_id}?hard=true").status_code == 204
        make_due(runtime)
        run_purges(runtime, "tests")
        landed.extend(step for owner, step in open_purges(runtime) if owner == canary.session_id)

    sealer = Sealer(replace(runtime, lake=DelayedLake(runtime.lake.url, delete)), owner="late")
    assert sealer.take()
    sealer.seal_batch()
    sealer.release()
    assert landed == ["lake"]
    finish_purges(runtime)
    assert count_hits(runtime, canary.word) == 0


def test_a_repeated_batch_number_is_refused_after_the_log_was_cleaned(caller: Caller) -> None:
    runtime, tenant = caller.service.runtime, Tenant(caller.key.workspace_id, "live")
    first, gone = recorded_canary(caller), recorded_canary(caller)
    caller.delete(f"/v1/sessions/{gone.session_id}?hard=true")
    with runtime.database.transaction(write=False) as db:
        batch = db.exec(select(SealBatchRow).where(SealBatchRow.workspace_id == tenant.workspace_id)).all()[
            -1
        ]
    lane = Lane.of_batch(batch).name
    for kind in LAYOUTS:
        log = Path(runtime.lake.url, tenant.workspace_id, tenant.mode, kind, "_delta_log")
        for entry in log.iterdir():
            os.utime(entry, (0, 0))  # readers may open younger entries
    finish_purges(runtime)
    # A process that knows nothing of what was committed.
    lake = Lake(runtime.lake.url)
    for kind in LAYOUTS:
        log = Path(runtime.lake.url, tenant.workspace_id, tenant.mode, kind, "_delta_log")
        assert [*log.glob("*.checkpoint.parquet")] and not (log / f"{0:020}.json").exists()
        rows = lake.scan(kind, tenant).collect().to_arrow().cast(LAYOUTS[kind].schema)
        assert set(rows["session_id"].to_pylist()) == {first.session_id}
        assert not lake.append(kind, tenant, rows, lane=lane, number=batch.number)
        with pytest.raises(LakeAhead):
            lake.append(kind, tenant, rows, lane=lane, number=batch.number - 1)
        assert lake.scan(kind, tenant).collect().height == rows.num_rows
        assert lake.append(kind, tenant, rows, lane=lane, number=batch.number + 1)
        assert lake.scan(kind, tenant).collect().height == 2 * rows.num_rows


def test_all_of_many_replays_go_with_their_session_and_their_events(caller: Caller) -> None:
    runtime, session_id, now = caller.service.runtime, caller.make_session(), clock.now()
    of_session = select(ReplayRow.id).where(ReplayRow.session_id == session_id)
    of_replays = select(OutboxRow.id).where(OutboxRow.type == "replay.of_the_test")
    with runtime.database.transaction(write=True) as db:
        for _ in range(250):
            replay_id = new_id("rpl")
            db.add_all(
                OutboxRow(
                    id=new_id("evt"),
                    workspace_id=caller.key.workspace_id,
                    mode="live",
                    type="replay.of_the_test",
                    subject_id=replay_id,
                    data={},
                    created_at=now,
                )
                for _ in range(3)
            )
            db.add(
                ReplayRow(
                    id=replay_id,
                    workspace_id=caller.key.workspace_id,
                    mode="live",
                    workflow="checkout",
                    session_id=session_id,
                    sandbox="dry",
                    kind="full",
                    status="completed",
                    spec={},
                    input_names=[],
                    decisions={},
                    created_at=now,
                    finished_at=now,
                )
            )
    assert caller.delete(f"/v1/sessions/{session_id}?hard=true").status_code == 204
    with runtime.database.transaction(write=False) as db:
        assert db.exec(of_session).first() is None
        assert db.exec(of_replays).first() is None


@pytest.mark.parametrize("is_held", [False, True])
def test_a_session_that_a_live_replay_recorded_goes_with_its_source(caller: Caller, is_held: bool) -> None:
    runtime = caller.service.runtime
    source = sealed_run(caller)
    recorded, replay_id = record_live_replay(caller, source)
    hold = {"kind": "session", "value": recorded}
    with runtime.database.transaction(write=True) as db:
        if is_held:
            add_hold(db, Origin.operator(caller.key.workspace_id), **hold)
    assert caller.get(f"/v1/sessions/{recorded}").json()["origin"] == "replay"
    assert "origin" not in caller.get(f"/v1/sessions/{source}").json()
    assert caller.delete(f"/v1/sessions/{source}?hard=true").status_code == 204
    causes = finish_purges(runtime).causes
    assert causes[caller.key.workspace_id, "hard_delete"] == (1 if is_held else 2)
    assert caller.get(f"/v1/sessions/{recorded}").status_code == (200 if is_held else 404)
    with runtime.database.transaction(write=False) as db:
        assert db.get(ReplayRow, replay_id) is None
    if is_held:
        assert run_retention(runtime, "tests", at=clock.now()).counts[caller.key.workspace_id, HELD] == 1
        with runtime.database.transaction(write=True) as db:
            remove_hold(db, Origin.operator(caller.key.workspace_id), **hold)
        run_retention(runtime, "tests", at=clock.now())
        assert caller.get(f"/v1/sessions/{recorded}").status_code == 404
        finish_purges(runtime)
        assert purge_row(runtime, recorded).cause == "deletion"
