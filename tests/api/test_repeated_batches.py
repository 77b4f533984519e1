"""Batches and items sent twice are stored once, also at the same moment. Contract §1 (idempotency), §3."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.factories import Caller, assert_problem, event, footprint, frame, multipart, picture

KINDS = ["events", "frames"]


def send(caller: Caller, kind: str, session_id: str, *items: dict[str, Any], key: str | None = None) -> Any:
    """One batch of a kind."""
    add = caller.add_events if kind == "events" else caller.add_frames
    return add(session_id, *items, key=key)


def item(kind: str, number: int, **members: Any) -> dict[str, Any]:
    """An item of a kind; other numbers are other items."""
    return event(number, **members) if kind == "events" else frame(number, number, **members)


def count(caller: Caller, kind: str, session_id: str) -> int:
    """Return the item count of a session, which must be the number of items that it lists."""
    body: int = caller.get(f"/v1/sessions/{session_id}").json()[f"{kind[:-1]}_count"]
    assert len(caller.get(f"/v1/sessions/{session_id}/{kind}?limit=500").json()["data"]) == body
    return body


def at_once(act: Callable[[], Any], *, times: int) -> list[Any]:
    """Return the results of an act in many threads that begin together."""
    barrier = threading.Barrier(times)
    results: list[Any] = []

    def run() -> None:
        barrier.wait()
        results.append(act())

    threads = [threading.Thread(target=run) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_with_a_key_is_stored_once(caller: Caller, kind: str) -> None:
    session_id = caller.make_session()
    first = send(caller, kind, session_id, item(kind, 1), item(kind, 2), key="batch-1")
    before = footprint(caller.service.runtime)
    again = send(caller, kind, session_id, item(kind, 1), item(kind, 2), key="batch-1")
    assert (again.status_code, again.content) == (202, first.content)
    assert again.headers["idempotent-replayed"] == "true" and "idempotent-replayed" not in first.headers
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_with_another_body_is_refused(caller: Caller, kind: str) -> None:
    session_id = caller.make_session()
    send(caller, kind, session_id, item(kind, 1), key="batch-1")
    before = footprint(caller.service.runtime)
    for items in ([item(kind, 2)], [item(kind, 1), item(kind, 1)], [item(kind, 1, url="https://a.example")]):
        answer = send(caller, kind, session_id, *items, key="batch-1")
        assert_problem(answer, 422, "idempotency_key_reused")
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_batch_is_answered_after_the_stop_too(caller: Caller, kind: str) -> None:
    session_id = caller.make_session()
    first = send(caller, kind, session_id, item(kind, 1), key="batch-1")
    caller.post(f"/v1/sessions/{session_id}/stop")
    assert send(caller, kind, session_id, item(kind, 1), key="batch-1").content == first.content
    assert_problem(send(caller, kind, session_id, item(kind, 1), key="batch-2"), 409, "invalid_state")


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_batch_is_answered_to_its_tenant_alone_and_until_the_deletion(
    caller: Caller, kind: str
) -> None:
    session_id, make_caller = caller.make_session(), caller.service.make_caller
    send(caller, kind, session_id, item(kind, 1), key="batch-1")
    for stranger in (make_caller(), make_caller(mode="test", workspace_id=caller.key.workspace_id)):
        assert_problem(send(stranger, kind, session_id, item(kind, 1), key="batch-1"), 404, "not_found")
    caller.delete(f"/v1/sessions/{session_id}")
    assert_problem(send(caller, kind, session_id, item(kind, 1), key="batch-1"), 404, "not_found")


def test_one_key_serves_events_and_frames_apart(caller: Caller) -> None:
    session_id = caller.make_session()
    for kind in KINDS:
        assert send(caller, kind, session_id, item(kind, 1), key="batch-1").json()["accepted"] == 1
        assert count(caller, kind, session_id) == 1


def test_frames_have_one_key_as_json_and_as_multipart(caller: Caller) -> None:
    session_id = caller.make_session()
    first = caller.add_frames(session_id, frame(1, 9), key="batch-1")
    files = multipart([{"t_ms": 1, "content_type": "image/png", "part": "p"}], p=picture(9))
    headers = {"Idempotency-Key": "batch-1"}
    again = caller.request("POST", f"/v1/sessions/{session_id}/frames", files=files, headers=headers)
    assert again.content == first.content


@pytest.mark.parametrize("kind", KINDS)
def test_two_keys_that_differ_are_refused(caller: Caller, kind: str) -> None:
    session_id = caller.make_session()
    before = footprint(caller.service.runtime)
    headers = [("Authorization", f"Bearer {caller.key.key}"), ("Idempotency-Key", "one")]
    sent = {"json": {kind: [item(kind, 1)]}, "headers": [*headers, ("Idempotency-Key", "two")]}
    answer = caller.service.client.post(f"/v1/sessions/{session_id}/{kind}", **sent)
    problem = assert_problem(answer, 422, "validation_failed")
    assert (problem["errors"][0]["in"], problem["errors"][0]["pointer"]) == ("header", "Idempotency-Key")
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "key", ["", "a b", "k" * 256, "é", "tab\t"], ids=["empty", "space", "256", "é", "tab"]
)
def test_a_key_is_1_to_255_visible_characters(caller: Caller, kind: str, key: str) -> None:
    session_id = caller.make_session()
    before = footprint(caller.service.runtime)
    body = {kind: [item(kind, 1)]}
    headers = [("Authorization", f"Bearer {caller.key.key}"), ("Idempotency-Key", key.encode())]
    answer = caller.service.client.post(f"/v1/sessions/{session_id}/{kind}", json=body, headers=headers)
    problem = assert_problem(answer, 422, "validation_failed")
    assert (problem["errors"][0]["in"], problem["errors"][0]["pointer"]) == ("header", "Idempotency-Key")
    assert footprint(caller.service.runtime) == before
    assert send(caller, kind, session_id, item(kind, 1), key="k" * 255).status_code == 202


@pytest.mark.parametrize("kind", KINDS)
def test_a_named_item_sent_again_is_a_duplicate(caller: Caller, kind: str) -> None:
    session_id = caller.make_session()
    name = "evt_A1" if kind == "events" else "frm_A1"
    assert send(caller, kind, session_id, item(kind, 1, id=name)).json()["accepted"] == 1
    # The same members in another order, beside new items.
    resent = dict(reversed(item(kind, 1, id=name).items()))
    answer = send(caller, kind, session_id, item(kind, 2), resent, item(kind, 3)).json()
    assert (answer["accepted"], answer["duplicates"], answer[f"{kind[:-1]}_count"]) == (2, 1, 3)
    assert count(caller, kind, session_id) == 3


def test_a_named_event_with_null_members_is_a_duplicate_of_one_without_them(caller: Caller) -> None:
    session_id = caller.make_session()
    bare = {"role": "button"}
    first = item("events", 1, id="evt_A1", target=bare, data={"x": None})
    nulls = {"url": None, "target": {**bare, "name": None}}
    send(caller, "events", session_id, first)
    assert send(caller, "events", session_id, {**first, **nulls}).json()["duplicates"] == 1
    # In free content null is a value.
    assert send(caller, "events", session_id, {**first, "data": {}}).status_code == 409


@pytest.mark.parametrize("kind", KINDS)
def test_a_named_item_twice_in_one_batch_is_stored_once(caller: Caller, kind: str) -> None:
    session_id = caller.make_session()
    named = item(kind, 1, id="evt_A1" if kind == "events" else "frm_A1")
    answer = send(caller, kind, session_id, named, named).json()
    assert (answer["accepted"], answer["duplicates"]) == (1, 1)
    assert count(caller, kind, session_id) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_named_item_with_other_content_refuses_its_batch(caller: Caller, kind: str) -> None:
    session_id = caller.make_session()
    name = "evt_A1" if kind == "events" else "frm_A1"
    send(caller, kind, session_id, item(kind, 1, id=name))
    before = footprint(caller.service.runtime)
    for changed in (item(kind, 2, id=name), item(kind, 1, id=name, url="https://a.example")):
        answer = send(caller, kind, session_id, item(kind, 5), changed)
        problem = assert_problem(answer, 409, "event_conflict")
        assert [error["pointer"] for error in problem["errors"]] == [f"/{kind}/1/id"]
    assert_problem(
        send(caller, kind, session_id, *(item(kind, n, id=f"{name}b") for n in (1, 2))), 409, "event_conflict"
    )
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_sent_by_many_at_once_is_stored_once(caller: Caller, kind: str) -> None:
    session_id = caller.make_session()
    answers = at_once(lambda: send(caller, kind, session_id, item(kind, 1), key="batch-1"), times=8)
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 7
    assert count(caller, kind, session_id) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_named_item_sent_by_many_at_once_is_stored_once(caller: Caller, kind: str) -> None:
    session_id = caller.make_session()
    named = item(kind, 1, id="evt_A1" if kind == "events" else "frm_A1")
    answers = [answer.json() for answer in at_once(lambda: send(caller, kind, session_id, named), times=8)]
    assert sorted(answer["accepted"] for answer in answers) == [0] * 7 + [1]
    assert count(caller, kind, session_id) == 1


def test_batches_that_come_together_all_count(caller: Caller) -> None:
    session_id = caller.make_session()
    events = at_once(lambda: caller.add_events(session_id, *[event(1)] * 10), times=12)
    frames = at_once(lambda: caller.add_frames(session_id, frame(1)), times=12)
    assert {answer.status_code for answer in events + frames} == {202}
    assert sorted(answer.json()["event_count"] for answer in events) == list(range(10, 130, 10))
    assert (count(caller, "events", session_id), count(caller, "frames", session_id)) == (120, 12)


def test_a_stop_among_batches_loses_none_that_was_answered(caller: Caller) -> None:
    session_id = caller.make_session()
    numbers = iter(range(100))

    def act() -> Any:
        if next(numbers) == 6:
            return caller.post(f"/v1/sessions/{session_id}/stop")
        return caller.add_events(session_id, event(1))

    answers = at_once(act, times=12)
    assert {answer.status_code for answer in answers} <= {200, 202, 409}
    taken = sum(answer.status_code == 202 for answer in answers)
    assert count(caller, "events", session_id) == taken
