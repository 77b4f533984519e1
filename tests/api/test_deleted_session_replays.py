"""Open replays and recoveries of sessions that are deleted softly: they end at once. Contract §2, §8."""

import re

import pytest
import sqlalchemy
from sqlmodel import select

from recorder import limits
from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow
from recorder.models.session import SessionRow
from recorder.recording.sessions import hide_session
from recorder.replay_service.requests.deleted_session_replays import end_replays_of_deleted_sessions
from tests.support.factories import Caller, assert_problem
from tests.support.failing_runs import make_run, page
from tests.support.query_plans import noted_statements, plan_of
from tests.support.replay_requests import allow_hosts, get_recovery, get_replay, post_recovery, post_replay
from tests.support.statements import before_each_statement
from tests.support.two_click_sessions import replay_all, sealed_run


def read_replays(caller: Caller, *replay_ids: str) -> list[ReplayRow]:
    """Return the rows of replays, which no request shows any more."""
    with caller.service.runtime.database.transaction(write=False) as db:
        return [db.get_one(ReplayRow, replay_id) for replay_id in replay_ids]


def test_deleting_a_session_ends_its_open_replays_and_forgets_their_inputs(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPEN_REPLAYS", 4)
    allow_hosts(caller, "erp.example")
    workspace_id = caller.key.workspace_id
    operator = caller.service.make_caller(workspace_id=workspace_id, scope="write replay:live")
    gone, other = sealed_run(caller), sealed_run(caller)
    typed = {"sandbox": "live", "inputs": {"pin": "hush-1234"}}
    ended = [
        post_replay(operator, gone, **typed)["id"],
        post_replay(caller, gone)["id"],
        post_replay(caller, other, against={"session_id": gone})["id"],
    ]
    kept = post_replay(caller, other)["id"]
    assert caller.delete(f"/v1/sessions/{gone}").status_code == 204
    for row in read_replays(caller, *ended):
        assert (row.status, row.input_values) == ("failed", None)
        assert (
            row.error is not None and row.error["message"] == "A session that the replay needs was deleted."
        )
    assert get_replay(caller, kept)["status"] == "queued"
    for _ in range(3):
        post_replay(caller, other)
    assert_problem(caller.post("/v1/replays", {"session_id": other, "sandbox": "dry"}), 422, "limit_reached")
    replay_all(caller)


def test_a_deletion_is_acknowledged_although_its_replays_cannot_be_ended_yet(caller: Caller) -> None:
    gone = sealed_run(caller)
    replay_id = post_replay(caller, gone)["id"]

    def fail(statement: str) -> None:
        if statement.startswith("UPDATE replays"):
            raise sqlalchemy.exc.OperationalError(statement, {}, Exception("the connection was lost"))

    with before_each_statement(fail):
        assert caller.delete(f"/v1/sessions/{gone}").status_code == 204
    assert read_replays(caller, replay_id)[0].status == "queued"
    replay_all(caller)
    assert read_replays(caller, replay_id)[0].status == "failed"


def test_a_recovery_goes_on_when_the_donor_of_its_attempt_is_deleted(caller: Caller) -> None:
    names = ("Open", "Review", "Approve")
    for _ in range(2):
        make_run(caller, *names)
    pages = {"Review": page("Server error", "Retry")}
    failed = make_run(caller, *names, error_at=3_200, pages=pages, seal=True)
    made = post_recovery(caller, failed, policy={"on_divergence": "ask"})
    replay_all(caller)
    attempt = get_replay(caller, get_recovery(caller, made["id"])["replay_ids"][-1])
    assert attempt["awaiting"]
    assert caller.delete(f"/v1/sessions/{attempt['session_id']}").status_code == 204
    replay_all(caller)
    shown = get_recovery(caller, made["id"])
    (row,) = read_replays(caller, attempt["id"])
    assert row.status == "failed" and row.awaiting_until is None
    assert shown["status"] == "failed" or shown["replay_ids"][-1] != attempt["id"]


def test_a_recovery_of_a_deleted_session_ends_with_its_attempt(caller: Caller) -> None:
    names = ("Open", "Review", "Approve")
    make_run(caller, *names)
    failed = make_run(caller, *names, error_at=3_200, pages={"Review": page("Error", "Retry")}, seal=True)
    made = post_recovery(caller, failed, policy={"on_divergence": "ask"})
    replay_all(caller)
    (attempt_id,) = get_recovery(caller, made["id"])["replay_ids"]
    assert caller.delete(f"/v1/sessions/{failed}").status_code == 204
    with caller.service.runtime.database.transaction(write=False) as db:
        recovery = db.get_one(RecoveryRow, made["id"])
    assert recovery.status == "failed" and recovery.finished_at is not None
    assert read_replays(caller, attempt_id)[0].status == "failed"


def test_a_run_ends_what_a_killed_deletion_left(caller: Caller) -> None:
    database = caller.service.runtime.database
    session_id = sealed_run(caller)
    made = post_replay(caller, session_id)
    with database.transaction(write=True) as db:
        row = db.get_one(SessionRow, session_id)
        hide_session(db, row, at=row.created_at)
        (open_row,) = db.exec(select(ReplayRow).where(ReplayRow.id == made["id"])).all()
        ended = {"status": "completed", "finished_at": row.created_at}
        rows = [open_row.model_dump() | {"id": f"{open_row.id[:-4]}{n:04d}"} | ended for n in range(300)]
        db.connection().execute(sqlalchemy.insert(ReplayRow), rows)
    if not database.is_sqlite:
        with database.transaction(write=True) as db:
            db.connection().exec_driver_sql("ANALYZE replays")
    with noted_statements() as noted:
        replay_all(caller)
    assert read_replays(caller, made["id"])[0].status == "failed"
    # Ended replays, which are kept for 90 days, are not searched.
    searches = [query for query in noted if "FROM replays" in query[0] and "NOT (" in query[0]]
    assert searches
    for statement, given in searches:
        plan = plan_of(database, statement, given)
        assert not re.search(
            r"SCAN replays\b(?! USING (COVERING )?INDEX ix)|Seq Scan on replays|replays_pkey", plan
        ), plan
    end_replays_of_deleted_sessions(database)
