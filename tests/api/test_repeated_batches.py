"""Batches and items sent twice are stored once, also at the same moment. Contract §1 (idempotency), §3."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from recorder.ids import decode_ulid, encode_ulid, new_id
from tests.support.factories import Caller, assert_problem, event, footprint, frame, multipart, picture
from tests.support.waiting import wait_for

KINDS = ["events", "frames"]
PREFIXES = {"events": "evt", "frames": "frm"}


def send(caller: Caller, kind: str, session_id: str, *items: dict[str, Any], key: str | None = None) -> Any:
    """Return one batch of a kind."""
    add = caller.add_events if kind == "events" else caller.add_frames
    return add(session_id, *items, key=key)


def item(kind: str, number: int, **members: Any) -> dict[str, Any]:
    """Return an item of a kind; other numbers are other items."""
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


def test_pictures_that_came_before_leave_no_second_object(caller: Caller) -> None:
    session_id = caller.make_session()
    named = item("frames", 1, id="frm_A1")
    for sent in (named, named, frame(2, 1)):  # a new frame, the same one, and a new one of the same picture
        assert send(caller, "frames", session_id, sent).status_code == 202
    folder = f"frames/{caller.key.workspace_id}/{session_id}/"
    assert len(caller.service.runtime.blobs.list_objects(folder)) == 1


def assigned_ids(caller: Caller, kind: str, session_id: str) -> list[str]:
    """Return the ids of a session's items by `(t_ms, id)`."""
    return [item["id"] for item in caller.get(f"/v1/sessions/{session_id}/{kind}").json()["data"]]


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_sent_again_with_the_id_that_the_service_assigned_is_a_duplicate(
    caller: Caller, kind: str
) -> None:
    session_id = caller.make_session()
    named = f"{PREFIXES[kind]}_A1"
    send(caller, kind, session_id, item(kind, 1), item(kind, 2, id=named), item(kind, 3, url=None))
    send(caller, kind, session_id, item(kind, 4))
    ids = assigned_ids(caller, kind, session_id)
    resent = [item(kind, 4, id=ids[3]), item(kind, 1, id=ids[0]), item(kind, 9)]
    answer = send(caller, kind, session_id, *resent).json()
    assert (answer["accepted"], answer["duplicates"], answer[f"{kind[:-1]}_count"]) == (1, 2, 5)
    assert count(caller, kind, session_id) == 5
    pages, cursor = [], ""
    while True:
        page = caller.get(f"/v1/sessions/{session_id}/{kind}?limit=1{cursor}").json()
        pages += [entry["t_ms"] for entry in page["data"]]
        if not page["has_more"]:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert pages == [1, 2, 3, 4, 9]


@pytest.mark.parametrize("kind", KINDS)
def test_other_content_under_an_assigned_id_refuses_its_batch(caller: Caller, kind: str) -> None:
    session_id = caller.make_session()
    send(caller, kind, session_id, item(kind, 1), item(kind, 2))
    ids = assigned_ids(caller, kind, session_id)
    before = footprint(caller.service.runtime)
    for changed in (item(kind, 3, id=ids[1]), item(kind, 2, id=ids[1], url="https://a.example")):
        problem = assert_problem(
            send(caller, kind, session_id, item(kind, 5), changed), 409, "event_conflict"
        )
        assert [error["pointer"] for error in problem["errors"]] == [f"/{kind}/1/id"]
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_form_of_id_that_the_service_assigns_is_free_to_clients(caller: Caller, kind: str) -> None:
    session_id, other_id = caller.make_session(), caller.make_session()
    send(caller, kind, session_id, item(kind, 1), item(kind, 2))
    ids = assigned_ids(caller, kind, session_id)
    # The ids of one session mean nothing in another one, and those next to a batch's range are unused.
    copied = [item(kind, n, id=name) for n, name in enumerate([*ids, new_id(PREFIXES[kind])], 5)]
    for _ in range(2):
        answer = send(caller, kind, other_id, *copied)
        assert answer.status_code == 202
    assert answer.json()["duplicates"] == 3
    values = (decode_ulid(ids[0][4:]) - 1, decode_ulid(ids[1][4:]) + 1)
    unused = [f"{PREFIXES[kind]}_{encode_ulid(value)}" for value in values]
    added = send(caller, kind, session_id, *(item(kind, n, id=name) for n, name in enumerate(unused, 7)))
    assert (added.status_code, added.json()["accepted"]) == (202, 2)
    assert count(caller, kind, session_id) == 4


def test_a_masked_item_sent_again_with_its_assigned_id_is_a_duplicate(caller: Caller) -> None:
    caller.request("PATCH", "/v1/workspaces/current", json={"masking": {"builtins": ["email"]}})
    session_id = caller.make_session()
    url = "https://a.example/?who=ada@example.com"
    for kind in KINDS:
        send(caller, kind, session_id, item(kind, 1, url=url))
        (assigned,) = assigned_ids(caller, kind, session_id)
        answer = send(caller, kind, session_id, item(kind, 1, url=url, id=assigned))
        assert (answer.status_code, answer.json()["duplicates"]) == (202, 1)


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


def test_a_workspace_has_one_look_up_of_assigned_ids_at_a_time(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = caller.service.make_caller()
    session_id, others_session = caller.make_session(), other.make_session()
    begun: list[str] = []
    go_on = threading.Event()

    def read(_: object, session: str, __: object) -> dict[str, bytes]:
        begun.append(session)
        if session == session_id:
            assert go_on.wait(20)
        return {}

    monkeypatch.setattr("api.bodies.batch_bodies.read_assigned_event_digests", read)
    with ThreadPoolExecutor(4) as threads:
        sent = [
            threads.submit(caller.add_events, session_id, event(number, id=new_id("evt")))
            for number in range(4)
        ]
        try:
            wait_for(lambda: begun)
            assert other.add_events(others_session, event(1, id=new_id("evt"))).status_code == 202
            assert begun == [session_id, others_session]
        finally:
            go_on.set()
        assert {each.result().status_code for each in sent} == {202}
    assert begun.count(session_id) == 4
