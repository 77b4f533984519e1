"""Stops of many sessions: short write transactions, of those that record alone. Contract §2."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from recorder import limits
from recorder.recording.batch_stops import PART_SESSIONS
from recorder.storage.fair_lock import FairLock
from tests.support.databases import create_file
from tests.support.factories import Caller, Service, assert_problem, event, running_app
from tests.support.query_plans import noted_statements
from tests.support.statements import before_each_statement
from tests.support.waiting import wait_for

STOPS = "/v1/sessions:batch_stop"
CHANGES = ("INSERT", "UPDATE", "DELETE")
#: Each part of a batch reads it once, while it has the lock of the writers.
PART_READ = "FROM session_metadata"


@pytest.fixture
def sqlite_service(tmp_path: Path) -> Iterator[Service]:
    """Yield a service on SQLite, whose writers wait for each other."""
    create_file(tmp_path / "data")
    with running_app(tmp_path / "data") as started:
        yield started


def make_unknown_ids(number: int) -> list[str]:
    """Return the ids of no session."""
    return [f"ses_{n:026}" for n in range(number)]


def test_sessions_that_do_not_record_cost_one_statement_before_the_write(caller: Caller) -> None:
    stopped = [caller.make_session() for _ in range(5)]
    assert caller.post(STOPS, {"ids": stopped}).json()["stopped"] == 5
    created = caller.post("/v1/sessions", {"workflow": "checkout"}).json()["id"]
    unknown = make_unknown_ids(limits.BATCH_STOP_IDS - 7)
    with noted_statements() as noted:
        answer = caller.post(STOPS, {"ids": [*stopped, created, "no id", *unknown]}).json()
    assert (answer["stopped"], answer["unchanged"], answer["failed"]) == (0, 5, limits.BATCH_STOP_IDS - 5)
    assert answer["data"][5]["error"]["code"] == "invalid_state"
    assert {item["error"]["code"] for item in answer["data"][6:]} == {"not_found"}
    assert sum("FROM sessions" in statement for statement, _ in noted) == 1
    assert not [statement for statement, _ in noted if statement.startswith(CHANGES)]
    assert not [statement for statement, _ in noted if "FOR UPDATE" in statement]


def test_each_transaction_stops_a_few_sessions_with_few_statements(caller: Caller) -> None:
    ids = [caller.make_session(metadata={"n": n}) for n in range(2 * PART_SESSIONS + 1)]
    caller.add_events(ids[1], event(1, "error"))
    with noted_statements() as noted:
        answer = caller.post(STOPS, {"ids": [*ids[::-1], ids[0], *make_unknown_ids(100)]}).json()
    assert (answer["stopped"], answer["unchanged"], answer["failed"]) == (len(ids), 0, 100)
    assert [item["id"] for item in answer["data"][: len(ids)]] == ids[::-1]
    assert sum("FROM sessions" in statement for statement, _ in noted) == 1 + 3
    assert sum(statement.startswith("INSERT INTO session_statuses") for statement, _ in noted) == 3
    assert sum(PART_READ in statement for statement, _ in noted) == 3
    assert sum(statement.startswith("INSERT INTO outbox") for statement, _ in noted) <= 6
    sessions = [caller.get(f"/v1/sessions/{session_id}").json() for session_id in ids[:2]]
    assert [(each["status"], each["outcome"], each["metadata"]) for each in sessions] == [
        ("stopped", "abandoned", {"n": 0}),
        ("stopped", "error", {"n": 1}),
    ]


def test_another_writer_waits_for_one_part_of_a_batch(sqlite_service: Service) -> None:
    caller, other = sqlite_service.make_caller(), sqlite_service.make_caller()
    ids = [caller.make_session() for _ in range(3 * PART_SESSIONS)]
    lock = sqlite_service.runtime.database.write_lock
    assert isinstance(lock, FairLock)
    order: list[str] = []
    waiting: list[Any] = []

    def note(statement: str) -> None:
        if PART_READ in statement:
            order.append("stop")
            if len(order) == 1:
                waiting.append(threads.submit(other.post, "/v1/sessions", {"workflow": "checkout"}))
                wait_for(lambda: lock.count_waiting() == 1)
        elif statement.startswith("INSERT INTO sessions "):
            order.append("other")

    with ThreadPoolExecutor(1) as threads, before_each_statement(note):
        assert caller.post(STOPS, {"ids": ids}).json()["stopped"] == len(ids)
        assert waiting[0].result().status_code == 201
    assert order == ["stop", "other", "stop", "stop"]


def test_the_key_of_a_batch_is_held_from_its_first_part(sqlite_service: Service) -> None:
    caller = sqlite_service.make_caller()
    body = {"ids": [caller.make_session() for _ in range(PART_SESSIONS + 1)]}
    repeated: list[Any] = []

    def repeat(statement: str) -> None:
        if PART_READ in statement and not repeated:
            repeated.append(None)
            repeated[0] = threads.submit(caller.post, STOPS, body, key="k").result(30)

    with ThreadPoolExecutor(1) as threads, before_each_statement(repeat):
        first = caller.post(STOPS, body, key="k")
    assert first.json()["stopped"] == PART_SESSIONS + 1
    assert_problem(repeated[0], 409, "idempotency_in_progress")
    again = caller.post(STOPS, body, key="k")
    assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")


@pytest.mark.parametrize("ids", [["no id"], make_unknown_ids(2), []], ids=["no id", "unknown", "none"])
def test_a_keyed_batch_that_stops_nothing_is_answered_alike(caller: Caller, ids: list[str]) -> None:
    first = caller.post(STOPS, {"ids": ids}, key="k")
    again = caller.post(STOPS, {"ids": ids}, key="k")
    assert (first.status_code, first.json()["failed"]) == (200, len(ids))
    assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")


def test_a_batch_that_fails_between_its_parts_can_be_sent_again(caller: Caller) -> None:
    body = {"ids": [caller.make_session() for _ in range(PART_SESSIONS + 5)]}
    parts = []

    def fail(statement: str) -> None:
        if PART_READ in statement:
            parts.append(statement)
            if len(parts) == 2:
                raise RuntimeError("the database is away")

    with before_each_statement(fail):
        assert caller.post(STOPS, body, key="k").status_code == 500
    answer = caller.post(STOPS, body, key="k").json()
    assert (answer["stopped"], answer["unchanged"], answer["failed"]) == (5, PART_SESSIONS, 0)
