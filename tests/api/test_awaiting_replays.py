"""Dry replays that await a decision: a turn of the drain run passes over them until their time is over."""

import re

import sqlalchemy
from sqlmodel import select

from recorder.models.replay import ReplayRow
from recorder.models.workspace import WorkspaceRow
from recorder.replay_service.due_replays import has_due_replays, list_due_replays, list_late_replays
from recorder.replays.replay_policy import DECISION_TIME
from tests.support.factories import Caller
from tests.support.query_plans import noted_statements, plan_of
from tests.support.two_click_sessions import replay_all, sealed_run

#: Indexes that a turn may search: those of what can run and of what is late, and the primary key.
_PLANNED = {"ix_replays_to_run", "ix_replays_awaiting", "sqlite_autoindex_replays_1", "replays_pkey"}


def make_awaiting(caller: Caller, count: int) -> list[str]:
    """Return the ids of replays of the workspace that await a decision."""
    body = {"session_id": sealed_run(caller), "sandbox": "dry", "mode": "guided"}
    made = caller.post("/v1/replays", body).json()
    replay_all(caller)
    with caller.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(ReplayRow, made["id"])
        assert row.awaiting_step is not None
        rows = [row.model_dump() | {"id": f"{row.id[:-4]}{number:04d}"} for number in range(count - 1)]
        if rows:
            db.connection().execute(sqlalchemy.insert(ReplayRow), rows)
    return [made["id"], *(other["id"] for other in rows)]


def let_time_pass(caller: Caller, *replay_ids: str) -> None:
    """End the time for the decision."""
    with caller.service.runtime.database.transaction(write=True) as db:
        for replay_id in replay_ids:
            row = db.get_one(ReplayRow, replay_id)
            assert row.awaiting_until is not None
            row.awaiting_until -= DECISION_TIME
            db.add(row)


def test_a_turn_searches_neither_what_awaits_a_decision_nor_all_that_is_open(caller: Caller) -> None:
    database = caller.service.runtime.database
    awaiting = make_awaiting(caller, 300)
    can_run = caller.post("/v1/replays", {"session_id": sealed_run(caller), "sandbox": "dry"}).json()["id"]
    let_time_pass(caller, awaiting[-1])
    if not database.is_sqlite:
        with database.transaction(write=True) as db:
            db.connection().exec_driver_sql("ANALYZE replays")
    with noted_statements() as noted, database.transaction(write=False) as db:
        assert [row.id for row in list_due_replays(db, limit=100)] == [can_run]
        assert [row.id for row in list_late_replays(db, limit=100)] == [awaiting[-1]]
    queries = [(statement, given) for statement, given in noted if "FROM replays" in statement]
    assert len(queries) == 4
    for statement, given in queries:
        plan = plan_of(database, statement, given)
        indexes = set(re.findall(r"\b(?:ix_replays_\w+|sqlite_autoindex_replays_1|replays_pkey)\b", plan))
        assert indexes and indexes <= _PLANNED, plan
        assert not re.search(r"SCAN replays\b(?! USING)|Seq Scan on replays", plan), plan
    assert any("awaiting_until<?" in plan_of(database, *query) for query in queries) or not database.is_sqlite
    replay_all(caller)


def test_what_awaits_a_decision_starts_no_run_until_its_time_is_over(caller: Caller) -> None:
    database = caller.service.runtime.database
    first, second, third = make_awaiting(caller, 3)
    with database.transaction(write=False) as db:
        assert not has_due_replays(db)
    let_time_pass(caller, first, second)
    with database.transaction(write=False) as db:
        assert has_due_replays(db)
    assert replay_all(caller).statuses == {"failed": 2}
    with database.transaction(write=False) as db:
        rows = {row.id: row for row in db.exec(select(ReplayRow))}
        assert rows[third].status == "running" and rows[third].awaiting_step is not None
        for row in (rows[first], rows[second]):
            assert row.error is not None and row.error["type"] == "timeout" and row.awaiting_until is None
        assert not has_due_replays(db)


def test_late_decisions_of_a_suspended_workspace_wait(caller: Caller) -> None:
    database = caller.service.runtime.database
    (awaiting,) = make_awaiting(caller, 1)
    let_time_pass(caller, awaiting)
    for status, expected in (("suspended", {}), ("active", {"failed": 1})):
        with database.transaction(write=True) as db:
            row = db.get_one(WorkspaceRow, caller.key.workspace_id)
            row.status = status
            db.add(row)
        assert replay_all(caller).statuses == expected
