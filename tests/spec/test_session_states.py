"""Spec §3.1 and contract §2 (other states), row by row: from, trigger, to, and the events of the change."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlmodel import select

from recorder.models.operations import OutboxRow
from recorder.sealing import Sealer
from tests.support.factories import Caller, Service, assert_problem, event, footprint
from tests.support.recorded_sessions import outbox_types
from tests.support.sealing import seal_waiting

STATES = ("created", "recording", "stopped", "sealed")
#: From, trigger, to (None: refused with 409), and what the outbox gains.
TRANSITIONS: list[tuple[str | None, str, str | None, list[str]]] = [
    (None, "create", "created", ["session.created"]),
    (None, "create with start false", "created", ["session.created"]),
    (None, "create with start true", "recording", ["session.created", "session.started"]),
    ("created", "start", "recording", ["session.started"]),
    ("created", "stop", None, []),
    ("created", "tag", None, []),
    ("created", "batch_stop", None, []),
    ("recording", "start", "recording", []),
    ("recording", "stop", "stopped", ["session.stopped"]),
    ("recording", "stop twice", "stopped", ["session.stopped"]),
    ("recording", "stop after an error", "stopped", ["session.stopped", "session.error"]),
    ("recording", "batch_stop", "stopped", ["session.stopped"]),
    ("recording", "tag", "recording", ["session.tagged"]),
    ("stopped", "start", None, []),
    ("stopped", "stop", "stopped", []),
    ("stopped", "batch_stop", "stopped", []),
    ("stopped", "tag", "stopped", ["session.tagged"]),
    ("stopped", "tag error", "stopped", ["session.tagged", "session.error"]),
    ("stopped", "indexing finishes", "sealed", ["session.sealed"]),
    ("sealed", "start", None, []),
    ("sealed", "stop", "sealed", []),
    ("sealed", "batch_stop", "sealed", []),
    ("sealed", "tag", "sealed", ["session.tagged"]),
    ("sealed", "tag error", "sealed", ["session.tagged", "session.error"]),
    ("sealed", "indexing finishes", "sealed", []),
]


@pytest.fixture
def sealer(service: Service) -> Iterator[Sealer]:
    """Yield the sealing run of this service; what other tests left is sealed first."""
    run = Sealer(service.runtime, owner="tests")
    assert run.take()
    seal_waiting(run)
    yield run
    run.release()


def make_session(caller: Caller, sealer: Sealer, status: str) -> str:
    """Return a session in any of the four states."""
    session_id = caller.make_session(status="stopped" if status == "sealed" else status)
    if status == "sealed":
        seal_waiting(sealer)
    assert caller.get(f"/v1/sessions/{session_id}").json()["status"] == status
    return session_id


def fire(caller: Caller, sealer: Sealer, session_id: str, trigger: str) -> Any:
    """Bring about a trigger; the answer of its request, None where there is none."""
    address = f"/v1/sessions/{session_id}"
    if trigger.startswith("tag"):
        return caller.post(f"{address}/tags", {"name": trigger.partition(" ")[2] or "seen"})
    if trigger == "batch_stop":
        return caller.post("/v1/sessions:batch_stop", {"ids": [session_id]})
    if trigger == "indexing finishes":
        seal_waiting(sealer)
        return None
    if trigger == "stop after an error":
        assert caller.add_events(session_id, event(1, "error")).status_code == 202
    if trigger == "stop twice":
        assert caller.post(f"{address}/stop").status_code == 200
    return caller.post(f"{address}/{trigger.split()[0]}")


@pytest.mark.parametrize(
    ("start", "trigger", "end", "triggers"),
    [pytest.param(*row, id=f"{row[0]} - {row[1]}") for row in TRANSITIONS if row[0] is None],
)
def test_spec_3_1_creation(caller: Caller, start: None, trigger: str, end: str, triggers: list[str]) -> None:
    chosen = {} if trigger == "create" else {"start": trigger.endswith("true")}
    created = caller.post("/v1/sessions", {"workflow": "checkout", **chosen})
    assert (created.status_code, created.json()["status"]) == (201, end)
    assert outbox_types(caller.service.runtime, created.json()["id"]) == triggers


@pytest.mark.parametrize(
    ("start", "trigger", "end", "triggers"),
    [pytest.param(*row, id=f"{row[0]} - {row[1]}") for row in TRANSITIONS if row[0] is not None],
)
def test_spec_3_1_transition(
    caller: Caller, sealer: Sealer, start: str, trigger: str, end: str | None, triggers: list[str]
) -> None:
    session_id = make_session(caller, sealer, start)
    before = outbox_types(caller.service.runtime, session_id)
    stored = footprint(caller.service.runtime)
    answer = fire(caller, sealer, session_id, trigger)
    if end is None and trigger == "batch_stop":
        (item,) = answer.json()["data"]
        assert (item["result"], item["status"], item["error"]["code"]) == ("error", start, "invalid_state")
    elif end is None:
        assert assert_problem(answer, 409, "invalid_state")["current_status"] == start
    else:
        assert answer is None or answer.status_code in (200, 201)
    assert caller.get(f"/v1/sessions/{session_id}").json()["status"] == (end or start)
    assert outbox_types(caller.service.runtime, session_id)[len(before) :] == triggers
    assert triggers or footprint(caller.service.runtime) == stored


def test_every_state_meets_every_trigger() -> None:
    triggers = {"start", "stop", "tag", "batch_stop"}
    covered = {(start, trigger) for start, trigger, _, _ in TRANSITIONS}
    assert {(state, trigger) for state in STATES for trigger in triggers} <= covered


@pytest.mark.parametrize("type", ["session.created", "session.started", "session.stopped", "session.sealed"])
def test_spec_3_1_an_event_shows_the_session_at_its_moment(caller: Caller, sealer: Sealer, type: str) -> None:
    session_id = caller.make_session(metadata={"n": 1})
    caller.post(f"/v1/sessions/{session_id}/stop")
    seal_waiting(sealer)
    shown = snapshots(caller, session_id)[type]
    status = type.partition(".")[2].replace("started", "recording")
    assert (shown["status"], shown["metadata"], shown["id"]) == (status, {"n": 1}, session_id)
    assert (shown["started_at"] is None) == (type == "session.created")
    assert (shown["stopped_at"] is None) == (type in ("session.created", "session.started"))


@pytest.mark.parametrize(
    ("act", "source", "name"),
    [
        pytest.param("event", "event", "error", id="detected failure"),
        pytest.param("tag", "tag", "failed", id="error tag"),
        pytest.param("late tag", "tag", "failure", id="late error tag"),
    ],
)
def test_spec_3_1_session_error_names_its_cause_once(
    caller: Caller, act: str, source: str, name: str
) -> None:
    session_id = caller.make_session()
    address = f"/v1/sessions/{session_id}"
    if act == "event":
        caller.add_events(session_id, event(7, "error", id="evt_cause"))
    if act == "tag":
        caller.post(f"{address}/tags", {"name": name, "t_ms": 7})
    caller.post(f"{address}/stop")
    if act == "late tag":
        caller.post(f"{address}/tags", {"name": name, "t_ms": 7})
    caller.post(f"{address}/tags", {"name": "error", "t_ms": 8})
    (error,) = [data["error"] for type, data in outbox(caller, session_id) if type == "session.error"]
    assert (error["source"], error["name"], error["t_ms"]) == (source, name, 7)
    assert act != "event" or error["id"] == "evt_cause"


def outbox(caller: Caller, session_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the type and data of a session's events."""
    with caller.service.runtime.database.transaction(write=False) as db:
        statement = select(OutboxRow).where(OutboxRow.subject_id == session_id).order_by(OutboxRow.id)
        return [(row.type, row.data) for row in db.exec(statement)]


def snapshots(caller: Caller, session_id: str) -> dict[str, dict[str, Any]]:
    """Return the session that each type of event shows."""
    return {type: data["session"] for type, data in outbox(caller, session_id)}
