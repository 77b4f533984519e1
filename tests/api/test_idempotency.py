"""Idempotency-Key on POSTs: carried out once, answered alike for 24 hours. Contract §1, cases 88, 90, 91."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute
from sqlmodel import col, select

from api.dependencies import get_db
from api.strict_routes import BatchRoute, StrictRoute
from recorder.access.idempotency_keys import IdempotencyKey, store_keyed_answer
from recorder.models.operations import IdempotencyRow, OutboxRow
from recorder.tenant import Tenant
from tests.support.completed_work import sealed_session
from tests.support.factories import Caller, Service, assert_problem, event, frame, stored_rows
from tests.support.recorded_sessions import execute, outbox_types
from tests.support.repeated_requests import CHECKOUT, REPLAYED, SESSIONS, assert_replayed, sessions_of

REORDERED = b' {"start":true , "metadata":{"who":"Zo\\u00eb","ticket":7},"workflow":"checkout"}'


def kept_answers(caller: Caller) -> list[IdempotencyRow]:
    """Return the answers that are kept for a workspace."""
    with caller.service.runtime.database.transaction(write=False) as db:
        rows = select(IdempotencyRow).where(IdempotencyRow.workspace_id == caller.key.workspace_id)
        return list(db.exec(rows.order_by(col(IdempotencyRow.created_at))))


def age(caller: Caller, hours: int) -> None:
    """Let the workspace's answers be as old as this."""
    moved = (
        f"datetime(created_at, '-{hours} hours') || '.000000'"
        if caller.service.runtime.database.is_sqlite
        else f"created_at - interval '{hours} hours'"
    )
    statement = f"UPDATE idempotency_keys SET created_at = {moved} WHERE workspace_id = :workspace"
    execute(caller.service.runtime, statement, workspace=caller.key.workspace_id)


def test_a_create_that_is_sent_again_makes_nothing_new(caller: Caller) -> None:
    first = caller.post(SESSIONS, CHECKOUT, key="k-1")
    before = stored_rows(caller.service.runtime)
    second = caller.post(SESSIONS, CHECKOUT, key="k-1")
    assert first.status_code == 201
    assert_replayed(first, second)
    assert stored_rows(caller.service.runtime) == before


def test_the_answer_stands_though_the_session_moved_on(caller: Caller) -> None:
    first = caller.post(SESSIONS, CHECKOUT, key="k")
    caller.post(f"{SESSIONS}/{first.json()['id']}/stop")
    assert_replayed(first, caller.post(SESSIONS, CHECKOUT, key="k"))


@pytest.mark.parametrize("is_hard", [False, True])
def test_a_deleted_session_is_not_shown_again(caller: Caller, is_hard: bool) -> None:
    first = caller.post(SESSIONS, CHECKOUT, key="k").json()["id"]
    address = f"{SESSIONS}/{first}"
    assert caller.post(f"{address}/tags", {"name": "noted"}, key="k").status_code == 201
    assert caller.delete(f"{address}?hard=true" if is_hard else address).status_code == 204
    again = caller.post(SESSIONS, CHECKOUT, key="k")
    assert again.status_code == 201 and again.json()["id"] != first
    assert "idempotent-replayed" not in again.headers
    assert_replayed(again, caller.post(SESSIONS, CHECKOUT, key="k"))
    tag = caller.post(f"{address}/tags", {"name": "noted"}, key="k")
    assert_problem(tag, 404, "not_found")
    assert "idempotent-replayed" not in tag.headers


@pytest.mark.parametrize("is_hard", [False, True])
def test_a_deleted_session_is_not_shown_among_several(caller: Caller, is_hard: bool) -> None:
    batch_stop, body = f"{SESSIONS}:batch_stop", {"ids": [caller.make_session() for _ in range(2)]}
    others = [
        caller.service.make_caller(),
        caller.service.make_caller(mode="test", workspace_id=caller.key.workspace_id),
    ]
    first = [each.post(batch_stop, body, key="k") for each in (caller, *others)]
    assert [item["result"] for item in first[0].json()["data"]] == ["stopped", "stopped"]
    address = f"{SESSIONS}/{body['ids'][0]}"
    assert caller.delete(f"{address}?hard=true" if is_hard else address).status_code == 204
    assert not is_hard or [answer.path for answer in kept_answers(caller) if answer.mode == "live"] == []
    again = caller.post(batch_stop, body, key="k")
    assert again.status_code == 200 and REPLAYED not in again.headers
    assert [item["result"] for item in again.json()["data"]] == ["error", "unchanged"]
    assert_replayed(again, caller.post(batch_stop, body, key="k"))
    for answer, other in zip(first[1:], others, strict=True):
        assert_replayed(answer, other.post(batch_stop, body, key="k"))


def test_replays_of_a_deleted_session_are_not_shown_again(caller: Caller) -> None:
    session_id = sealed_session(caller, tag="error")
    others = [("/v1/replays", {"session_id": session_id, "sandbox": "dry", "mode": "full"})]
    others.append(("/v1/recoveries", {"session_id": session_id, "sandbox": "dry"}))
    first = [caller.post(path, body, key="k") for path, body in others]
    assert [answer.status_code for answer in first] == [202, 202], [answer.text for answer in first]
    for answer, (path, body) in zip(first, others, strict=True):
        assert_replayed(answer, caller.post(path, body, key="k"))
    assert caller.delete(f"{SESSIONS}/{session_id}").status_code == 204
    for path, body in others:
        assert_problem(caller.post(path, body, key="k"), 404, "not_found")


def test_bodies_are_the_same_if_their_values_are(caller: Caller) -> None:
    first = caller.post(SESSIONS, CHECKOUT, key="k")
    headers = {"Idempotency-Key": "k"}
    assert_replayed(first, caller.post_raw(SESSIONS, REORDERED, **headers))
    session_id = first.json()["id"]
    stopped = caller.post(f"{SESSIONS}/{session_id}/stop", key="k")
    for body in (b"", b"{}", b" {} "):
        assert_replayed(stopped, caller.post_raw(f"{SESSIONS}/{session_id}/stop", body, **headers))


def test_another_body_under_the_same_key_is_refused(caller: Caller) -> None:
    caller.post(SESSIONS, CHECKOUT, key="k")
    before = stored_rows(caller.service.runtime)
    answer = caller.post(SESSIONS, {**CHECKOUT, "start": False}, key="k")
    assert_problem(answer, 422, "idempotency_key_reused")
    assert stored_rows(caller.service.runtime) == before


def test_a_malformed_body_is_told_before_the_key_is_looked_at(caller: Caller) -> None:
    caller.post(SESSIONS, CHECKOUT, key="k")
    assert_problem(caller.post(SESSIONS, {"workflow": "No Slug"}, key="k"), 422, "validation_failed")
    large = {**CHECKOUT, "metadata": {"text": "x" * 17_000}}
    assert_problem(caller.post(SESSIONS, large, key="k"), 422, "metadata_too_large")


def test_a_key_holds_for_one_workspace_mode_and_address(service: Service, caller: Caller) -> None:
    workspace_id = caller.key.workspace_id
    same = service.make_caller(workspace_id=workspace_id)
    others = [service.make_caller(workspace_id=workspace_id, mode="test"), service.make_caller()]
    first = caller.post(SESSIONS, CHECKOUT, key="k")
    assert_replayed(first, same.post(SESSIONS, CHECKOUT, key="k"))
    assert [REPLAYED in other.post(SESSIONS, CHECKOUT, key="k").headers for other in others] == [False, False]
    ids = [first.json()["id"], caller.make_session()]
    stops = [caller.post(f"{SESSIONS}/{session_id}/stop", key="k") for session_id in ids]
    assert [(stop.status_code, stop.json()["id"], REPLAYED in stop.headers) for stop in stops] == [
        (200, session_id, False) for session_id in ids
    ]


def test_the_body_of_a_create_may_name_the_key(caller: Caller) -> None:
    first = caller.post(SESSIONS, {**CHECKOUT, "idempotency_key": "k"})
    assert first.status_code == 201 and "idempotency_key" not in first.json()
    assert_replayed(first, caller.post(SESSIONS, {**CHECKOUT, "idempotency_key": "k"}))
    assert_replayed(first, caller.post(SESSIONS, CHECKOUT, key="k"))
    assert_replayed(first, caller.post(SESSIONS, {**CHECKOUT, "idempotency_key": "k"}, key="k"))


def test_header_and_body_that_differ_are_refused(caller: Caller) -> None:
    answer = caller.post(SESSIONS, {**CHECKOUT, "idempotency_key": "one"}, key="two")
    problem = assert_problem(answer, 422, "validation_failed")
    assert [item["pointer"] for item in problem["errors"]] == ["/idempotency_key"]
    assert sessions_of(caller) == []


def test_the_body_of_other_posts_names_no_key(caller: Caller) -> None:
    address = f"{SESSIONS}/{caller.make_session()}/tags"
    answer = caller.post(address, {"name": "seen", "idempotency_key": "k"})
    assert assert_problem(answer, 422, "validation_failed")["errors"][0]["code"] == "unknown_field"


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "tab\there", "größe".encode().decode("latin-1")])
def test_a_malformed_key_is_refused(caller: Caller, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    sent = caller.request("POST", SESSIONS, json=CHECKOUT, headers=headers)
    named = caller.post(SESSIONS, {**CHECKOUT, "idempotency_key": key})
    problems = [assert_problem(answer, 422, "validation_failed") for answer in (sent, named)]
    assert [problem["errors"][0]["pointer"] for problem in problems] == [
        "Idempotency-Key",
        "/idempotency_key",
    ]
    assert not key or key not in sent.text + named.text
    assert sessions_of(caller) == []


def test_the_longest_key_and_a_null_one_are_taken(caller: Caller) -> None:
    key = "~" * 127 + "!" * 128
    assert_replayed(caller.post(SESSIONS, CHECKOUT, key=key), caller.post(SESSIONS, CHECKOUT, key=key))
    answer = caller.post(SESSIONS, {**CHECKOUT, "idempotency_key": None})
    assert answer.status_code == 201 and len(sessions_of(caller)) == 2


def test_two_headers_that_differ_are_refused(caller: Caller) -> None:
    headers = [
        ("Authorization", f"Bearer {caller.key.key}"),
        ("Idempotency-Key", "one"),
        ("Idempotency-Key", "two"),
    ]
    answer = caller.service.client.post(SESSIONS, json=CHECKOUT, headers=headers)
    problem = assert_problem(answer, 422, "validation_failed")
    assert (problem["errors"][0]["in"], problem["errors"][0]["pointer"]) == ("header", "Idempotency-Key")


def test_what_is_missing_or_not_now_is_answered_alike_again(caller: Caller) -> None:
    session_id = caller.make_session(status="created")
    early = caller.post(f"{SESSIONS}/{session_id}/stop", key="k")
    assert_problem(early, 409, "invalid_state")
    tagged = caller.post(f"{SESSIONS}/{session_id}/tags", {"name": "seen"})
    assert "Start it with POST" in assert_problem(tagged, 409, "invalid_state")["detail"]
    missing = caller.post(f"{SESSIONS}/{session_id.swapcase()}/stop", key="k")
    assert_problem(missing, 404, "not_found")
    caller.post(f"{SESSIONS}/{session_id}/start")
    assert_replayed(early, caller.post(f"{SESSIONS}/{session_id}/stop", key="k"))
    assert_replayed(missing, caller.post(f"{SESSIONS}/{session_id.swapcase()}/stop", key="k"))
    assert caller.get(f"{SESSIONS}/{session_id}").json()["status"] == "recording"


def test_a_very_long_path_is_only_missing(caller: Caller) -> None:
    path = f"{SESSIONS}/{'x' * 5_000}/stop"
    assert_replayed(caller.post(path, key="k"), caller.post(path, key="k"))


def test_what_was_refused_before_it_began_is_not_kept(service: Service, caller: Caller) -> None:
    reader = service.make_caller(workspace_id=caller.key.workspace_id, scope="read")
    refused = [
        caller.post(SESSIONS, {"workflow": "No Slug"}, key="k"),
        caller.post_raw(SESSIONS, b"{", **{"Idempotency-Key": "k"}),
        caller.post_raw(SESSIONS, b"{}", content_type="text/plain", **{"Idempotency-Key": "k"}),
        caller.post_raw(SESSIONS, b" " * 2**21, **{"Idempotency-Key": "k"}),
        reader.post(SESSIONS, CHECKOUT, key="k"),
        service.client.post(SESSIONS, json=CHECKOUT, headers={"Idempotency-Key": "k"}),
    ]
    assert [answer.status_code for answer in refused] == [422, 400, 415, 413, 403, 401]
    assert kept_answers(caller) == []
    assert caller.post(SESSIONS, CHECKOUT, key="k").status_code == 201


def test_a_fault_on_our_side_is_not_kept(caller: Caller) -> None:
    session_id = caller.make_session()
    runtime = caller.service.runtime
    whole = "UPDATE session_metadata SET metadata = '{}' WHERE session_id = :id"
    execute(runtime, whole.replace("'{}'", "'[1]'"), id=session_id)
    assert_problem(caller.post(f"{SESSIONS}/{session_id}/stop", key="k"), 500, "internal_error")
    assert kept_answers(caller) == []
    execute(runtime, whole, id=session_id)
    assert caller.post(f"{SESSIONS}/{session_id}/stop", key="k").json()["status"] == "stopped"


@pytest.fixture(params=["idempotency_keys", "outbox", "session_metadata"])
def refusing_table(request: pytest.FixtureRequest, service: Service) -> Iterator[None]:
    """Yield a table that takes no rows."""
    # A name of its own: a pooled connection of SQLite may still know the trigger that another one dropped.
    name = f"refuse_{request.param}"
    drop = f"DROP TRIGGER {name} ON {request.param}"
    make = f"CREATE TRIGGER {name} BEFORE INSERT ON {request.param}"
    if service.runtime.database.is_sqlite:
        drop = f"DROP TRIGGER {name}"
        execute(service.runtime, f"{make} BEGIN SELECT RAISE(ABORT, 'no'); END")
    else:
        body = "'BEGIN RAISE EXCEPTION ''no''; END'"
        function = f"CREATE OR REPLACE FUNCTION refuse() RETURNS trigger AS {body} LANGUAGE plpgsql"
        execute(service.runtime, function)
        execute(service.runtime, f"{make} FOR EACH ROW EXECUTE FUNCTION refuse()")
    yield
    execute(service.runtime, drop)


@pytest.mark.usefixtures("refusing_table")
def test_key_and_session_are_stored_together_or_not_at_all(caller: Caller) -> None:
    assert_problem(caller.post(SESSIONS, CHECKOUT, key="k"), 500, "internal_error")
    assert (sessions_of(caller), kept_answers(caller)) == ([], [])


def test_answers_are_kept_for_a_day(caller: Caller) -> None:
    first = caller.post(SESSIONS, CHECKOUT, key="k")
    age(caller, hours=23)
    assert_replayed(first, caller.post(SESSIONS, CHECKOUT, key="k"))
    age(caller, hours=1)
    second = caller.post(SESSIONS, {**CHECKOUT, "start": False}, key="k")
    assert second.status_code == 201 and REPLAYED not in second.headers
    assert [row.answer for row in kept_answers(caller)] == [second.content]


def test_an_answer_that_holds_is_not_overwritten(caller: Caller) -> None:
    # Two processes may answer one key at once: the answer that was stored first remains.
    first = caller.post(SESSIONS, CHECKOUT, key="k")
    (row,) = kept_answers(caller)
    key = IdempotencyKey(
        Tenant(row.workspace_id, row.mode), row.method, row.path, row.key, bytes(row.body_digest)
    )
    with caller.service.runtime.database.transaction(write=True) as db:
        store_keyed_answer(db, key, status=404, body=b"{}", resource_id=None)
    (kept,) = kept_answers(caller)
    assert (kept.status, kept.answer) == (201, first.content)
    assert_replayed(first, caller.post(SESSIONS, CHECKOUT, key="k"))


def test_old_answers_do_not_pile_up(caller: Caller) -> None:
    for number in range(12):
        caller.post(SESSIONS, CHECKOUT, key=f"old-{number}")
    age(caller, hours=25)
    counts = []
    for number in range(3):
        caller.post(SESSIONS, CHECKOUT, key=f"new-{number}")
        counts.append(len(kept_answers(caller)))
    assert counts == [3, 2, 3]


def test_neither_key_nor_body_is_kept_as_it_was_sent(caller: Caller) -> None:
    caller.post(SESSIONS, {"workflow": "checkout"}, key="ada@example.com")
    [row] = kept_answers(caller)
    assert "ada@example.com" not in row.model_dump_json(exclude={"answer", "body_digest"})
    assert len(row.key) == 64 and len(row.body_digest) == 32
    assert row.resource_id == sessions_of(caller)[0]


def test_a_key_on_other_methods_changes_nothing(caller: Caller) -> None:
    address = f"{SESSIONS}/{caller.make_session()}"
    headers = {"Idempotency-Key": "k"}
    assert [caller.request("GET", address, headers=headers).status_code for _ in range(2)] == [200, 200]
    assert [caller.request("DELETE", address, headers=headers).status_code for _ in range(2)] == [204, 404]
    assert kept_answers(caller) == []


def test_batches_keep_their_own_ids(caller: Caller) -> None:
    session_id = caller.make_session()
    for send in (
        lambda: caller.add_events(session_id, event(1), key="k"),
        lambda: caller.add_frames(session_id, frame(1), key="k"),
    ):
        first, second = send(), send()
        assert (first.status_code, second.headers.get(REPLAYED)) == (202, "true")
        assert first.content == second.content
    assert kept_answers(caller) == []


def routes_of(router: Any) -> list[APIRoute]:
    """Return the application's own routes, also those of routers inside routers."""
    statuses = []
    for route in router.routes:
        if isinstance(route, APIRoute):
            statuses.append(route)
        elif hasattr(route, "routes") or hasattr(route, "original_router"):
            statuses.extend(routes_of(getattr(route, "original_router", route)))
    return statuses


def uses_transaction(dependant: Any) -> bool:
    """Return whether a route works in the request's transaction."""
    return dependant.call is get_db or any(
        uses_transaction(dependency) for dependency in dependant.dependencies
    )


def test_every_post_takes_the_key(service: Service) -> None:
    posts = [
        route for route in routes_of(service.app) if "POST" in route.methods and route.path.startswith("/v1/")
    ]
    assert len(posts) >= 8
    assert [route.path for route in posts if not isinstance(route, StrictRoute)] == []
    keyed = [route for route in posts if not isinstance(route, BatchRoute)]
    assert {route.path_format.rpartition("/")[2] for route in posts} - {
        route.path_format.rpartition("/")[2] for route in keyed
    } == {"events", "frames"}
    assert [route.path for route in keyed if not uses_transaction(route.dependant)] == []
    described = service.app.openapi()["paths"]
    for route in posts:
        operation = described[route.path_format]["post"]
        assert "Idempotency-Key" in {parameter["name"] for parameter in operation["parameters"]}, route.path
        assert {"409", "422"} <= set(operation["responses"]), route.path


def test_the_outbox_tells_a_replayed_request_once(caller: Caller) -> None:
    for _ in range(3):
        answer = caller.post(SESSIONS, CHECKOUT, key="k")
    with caller.service.runtime.database.transaction(write=False) as db:
        types = db.exec(select(OutboxRow.type).where(OutboxRow.workspace_id == caller.key.workspace_id)).all()
    assert sorted(types) == ["session.created", "session.started"]
    assert outbox_types(caller.service.runtime, answer.json()["id"]) == ["session.created", "session.started"]
