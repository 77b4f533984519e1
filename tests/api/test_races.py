"""Racing requests: each change happens once and has one event; no count is lost. Spec §3.1, contract §1."""

import threading
from collections.abc import Callable
from typing import Any

from recorder.models.workflow import WorkflowRow
from tests.support.factories import Caller, event
from tests.support.recorded_sessions import outbox_types, session_row


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Return the results of acts that begin together, in their order."""
    barrier = threading.Barrier(len(acts))
    results: dict[int, Any] = {}

    def run(number: int) -> None:
        barrier.wait()
        results[number] = acts[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(len(acts))]


def statuses(answers: list[Any]) -> list[int]:
    """Return the statuses of answers, sorted."""
    return sorted(answer.status_code for answer in answers)


def count_in_outbox(caller: Caller, session_id: str, type: str) -> int:
    """Return the number of events of a type in the outbox."""
    return outbox_types(caller.service.runtime, session_id).count(type)


def test_a_session_starts_and_stops_once(caller: Caller) -> None:
    session_id = caller.make_session(status="created")
    for trigger, status in (("start", "recording"), ("stop", "stopped")):
        answers = at_once(*[lambda: caller.post(f"/v1/sessions/{session_id}/{trigger}")] * 8)  # noqa: B023
        assert statuses(answers) == [200] * 8
        assert len({answer.content for answer in answers}) == 1
        assert (
            count_in_outbox(caller, session_id, f"session.{trigger}{'ped' if trigger == 'stop' else 'ed'}")
            == 1
        )
        assert caller.get(f"/v1/sessions/{session_id}").json()["status"] == status


def test_an_error_is_told_once_however_many_tags_say_it(caller: Caller) -> None:
    session_id = caller.make_session(status="stopped")
    address = f"/v1/sessions/{session_id}/tags"
    answers = at_once(*[lambda: caller.post(address, {"name": "failed"})] * 8)
    assert statuses(answers) == [201] * 8
    assert (
        count_in_outbox(caller, session_id, "session.tagged"),
        count_in_outbox(caller, session_id, "session.error"),
    ) == (8, 1)
    assert len(caller.get(address).json()["data"]) == 8


def test_a_session_is_deleted_once(caller: Caller) -> None:
    address = f"/v1/sessions/{caller.make_session()}"
    assert statuses(at_once(*[lambda: caller.delete(address)] * 8)) == [204] + [404] * 7


def test_everything_that_meets_draws_its_own_position(caller: Caller) -> None:
    session_id = caller.make_session()
    tag = [lambda: caller.post(f"/v1/sessions/{session_id}/tags", {"name": "seen"})] * 5
    batch = [lambda: caller.add_events(session_id, event(1), event(2))] * 5
    assert statuses(at_once(*tag, *batch)) == [201] * 5 + [202] * 5
    caller.post(f"/v1/sessions/{session_id}/stop")
    # created, recording, 5 tags, 10 events, stopped
    assert session_row(caller.service.runtime, session_id).last_position == 18


def test_a_workflow_counts_its_sessions(caller: Caller) -> None:
    doomed = [caller.make_session(workflow="busy") for _ in range(6)]
    make = [lambda: caller.post("/v1/sessions", {"workflow": "busy"})] * 6
    drop = [
        lambda session_id=session_id: caller.delete(f"/v1/sessions/{session_id}") for session_id in doomed
    ]
    assert statuses(at_once(*make, *drop)) == [201] * 6 + [204] * 6
    with caller.service.runtime.database.transaction(write=False) as db:
        row = db.get_one(WorkflowRow, (caller.key.workspace_id, "live", "busy"))
    assert row.session_count == 6


def test_batch_stops_that_cross_each_other_all_succeed(caller: Caller) -> None:
    ids = [caller.make_session() for _ in range(30)]
    stop = [
        lambda part=part: caller.post("/v1/sessions:batch_stop", {"ids": part})
        for part in (ids, ids[::-1]) * 3
    ]
    answers = at_once(*stop)
    assert statuses(answers) == [200] * 6
    assert sum(answer.json()["stopped"] for answer in answers) == 30
    assert [item["id"] for item in answers[1].json()["data"]] == ids[::-1]
