"""Webhooks over HTTP: made, listed, rotated, deleted, audited. Spec §2.4, §4.4; contract §6."""

import base64
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import col, select

from recorder import clock, limits
from recorder.ids import new_id
from recorder.models.operations import AuditRow
from recorder.models.webhook import WebhookSecretRow
from recorder.webhooks.catalogue import EVENT_TYPES
from recorder.webhooks.subscriptions import WebhookSecretBox, add_webhook_secret
from tests.support.factories import Caller, Service, assert_problem
from tests.support.webhooks import LOCAL, URL, WEBHOOKS, body, make


def test_creating_answers_the_four_members_of_the_specification(caller: Caller) -> None:
    answer = caller.post(WEBHOOKS, body(description="to the ledger"))
    made = answer.json()
    assert (answer.status_code, list(made)) == (201, ["id", "url", "events", "secret"])
    assert (made["url"], made["events"]) == (URL, ["session.sealed"])
    assert made["id"].startswith("whk_") and made["secret"].startswith("whsec_")
    assert len(base64.b64decode(made["secret"].removeprefix("whsec_"), validate=True)) == 32


def test_no_cache_keeps_an_answer_with_a_secret(caller: Caller) -> None:
    made = caller.post(WEBHOOKS, body())
    again = caller.post(f"{WEBHOOKS}/{made.json()['id']}/secret")
    assert [answer.headers.get("cache-control") for answer in (made, again)] == ["no-store", "no-store"]
    assert "secret" in again.json()


def test_reading_shows_all_but_the_secret(caller: Caller) -> None:
    made = make(caller, description="to the ledger")
    read_back = caller.get(f"{WEBHOOKS}/{made['id']}").json()
    assert list(read_back) == ["id", "url", "events", "description", "skipped_events", "created_at"]
    assert (read_back["id"], read_back["description"]) == (made["id"], "to the ledger")
    assert read_back["skipped_events"] is None
    assert make(caller)["secret"] not in caller.get(WEBHOOKS).text


def test_the_list_is_newest_first_and_pages(caller: Caller) -> None:
    ids = [make(caller)["id"] for _ in range(3)]
    first = caller.get(f"{WEBHOOKS}?limit=2").json()
    rest = caller.get(f"{WEBHOOKS}?limit=2&cursor={first['next_cursor']}").json()
    assert [item["id"] for item in (*first["data"], *rest["data"])] == ids[::-1]
    assert (first["has_more"], rest["has_more"], rest["next_cursor"]) == (True, False, None)


def test_events_are_kept_once_each(caller: Caller) -> None:
    twice, once = ["export.failed", "quota.warning", "export.failed"], ["export.failed", "quota.warning"]
    assert make(caller, events=twice)["events"] == once
    changed = caller.request("PATCH", f"{WEBHOOKS}/{make(caller)['id']}", json={"events": twice})
    assert changed.json()["events"] == once


def test_every_type_of_the_catalogue_can_be_subscribed_to(caller: Caller) -> None:
    assert make(caller, events=list(EVENT_TYPES))["events"] == list(EVENT_TYPES)


def test_an_unknown_event_type_is_answered_with_the_known_ones(caller: Caller) -> None:
    answer = caller.post(WEBHOOKS, body(events=["session.seeled"]))
    message = assert_problem(answer, 422, "validation_failed")["errors"][0]["message"]
    assert all(type in message for type in EVENT_TYPES) and "seeled" not in message


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"events": []}, "/events"),
        ({"events": ["*"]}, "/events/0"),
        ({"events": ["session.sealed", "session.*"]}, "/events/1"),
        ({"events": ["webhook.test"]}, "/events/0"),
        ({"events": "session.sealed"}, "/events"),
        ({"events": [1]}, "/events/0"),
        ({"events": None}, "/events"),
        ({"url": 1}, "/url"),
        ({"url": ""}, "/url"),
        ({"description": "x" * (limits.DESCRIPTION_CHARACTERS + 1)}, "/description"),
        ({"secret": "whsec_mine"}, "/secret"),
    ],
)
def test_a_wrong_member_is_pointed_at(caller: Caller, members: dict[str, Any], pointer: str) -> None:
    problem = assert_problem(caller.post(WEBHOOKS, body(**members)), 422, "validation_failed")
    assert [item["pointer"] for item in problem["errors"]] == [pointer]


@pytest.mark.parametrize("missing", ["url", "events"])
def test_url_and_events_are_needed(caller: Caller, missing: str) -> None:
    sent = {name: value for name, value in body().items() if name != missing}
    problem = assert_problem(caller.post(WEBHOOKS, sent), 422, "validation_failed")
    assert [(item["pointer"], item["code"]) for item in problem["errors"]] == [(f"/{missing}", "missing")]


def test_a_workspace_has_a_hundred_webhooks_at_most_however_many_ask_at_once(caller: Caller) -> None:
    ids = [make(caller)["id"] for _ in range(limits.WEBHOOKS_PER_WORKSPACE - 3)]
    codes: list[int] = []
    asking = [
        threading.Thread(target=lambda: codes.append(caller.post(WEBHOOKS, body()).status_code))
        for _ in range(8)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert sorted(codes) == [201] * 3 + [422] * 5
    assert_problem(caller.post(WEBHOOKS, body()), 422, "limit_reached")
    assert caller.delete(f"{WEBHOOKS}/{ids[0]}").status_code == 204
    assert caller.post(WEBHOOKS, body()).status_code == 201


def test_rotating_gives_a_new_secret_and_keeps_it_encrypted(caller: Caller) -> None:
    made = make(caller)
    answer = caller.post(f"{WEBHOOKS}/{made['id']}/secret")
    rotated = answer.json()
    assert (answer.status_code, list(rotated)) == (200, ["id", "secret"])
    assert rotated["id"] == made["id"] and rotated["secret"] != made["secret"]
    runtime = caller.service.runtime
    with runtime.database.transaction(write=False) as db:
        rows = list(db.exec(select(WebhookSecretRow).filter_by(webhook_id=made["id"]).order_by("number")))
    box = WebhookSecretBox(runtime.settings.secret)
    assert [box.decrypt_secret(row) for row in rows] == [made["secret"], rotated["secret"]]
    assert rows[0].expires_at is not None and rows[1].expires_at is None
    assert (rows[0].expires_at - rows[1].created_at).total_seconds() == 24 * 3600


def test_more_rotations_than_can_sign_at_once_are_refused(caller: Caller) -> None:
    made = make(caller)
    answers = [caller.post(f"{WEBHOOKS}/{made['id']}/secret") for _ in range(10)]
    assert [answer.status_code for answer in answers] == [200] * 9 + [422]
    assert_problem(answers[-1], 422, "limit_reached")
    runtime, tomorrow = caller.service.runtime, clock.now() + timedelta(hours=24, minutes=1)
    with runtime.database.transaction(write=True) as db:
        assert add_webhook_secret(db, WebhookSecretBox(runtime.settings.secret), made["id"], now=tomorrow)


@pytest.mark.parametrize("path", [WEBHOOKS, "{webhook}/secret"])
def test_an_answer_that_is_repeated_holds_no_secret(caller: Caller, path: str) -> None:
    address = path.format(webhook=f"{WEBHOOKS}/{make(caller)['id']}")
    sent = body() if path == WEBHOOKS else None
    first, second = (caller.post(address, sent, key="k") for _ in range(2))
    assert second.headers["idempotent-replayed"] == "true"
    assert second.json() == {**first.json(), "secret": None}


def test_deleting_leaves_nothing_to_be_found(caller: Caller) -> None:
    made = make(caller, url=LOCAL)
    path = f"{WEBHOOKS}/{made['id']}"
    sent = caller.post(f"{path}/test").json()
    assert caller.delete(path).status_code == 204
    again = f"{path}/deliveries/{sent['id']}/redeliver"
    answers = [caller.get(path), caller.delete(path), caller.get(f"{path}/deliveries"), caller.post(again)]
    answers += [caller.post(f"{path}/test"), caller.post(f"{path}/secret")]
    assert [(answer.status_code, answer.json()["resource"]) for answer in answers] == [(404, "webhook")] * 6
    assert made["id"] not in caller.get(WEBHOOKS).text
    with caller.service.runtime.database.transaction(write=False) as db:
        assert db.exec(select(WebhookSecretRow).filter_by(webhook_id=made["id"])).all() == []


@pytest.mark.parametrize("stranger", ["another workspace", "the other mode"])
def test_a_foreign_webhook_answers_like_a_missing_one(
    service: Service, caller: Caller, stranger: str
) -> None:
    made = make(caller, url=LOCAL)
    sent = caller.post(f"{WEBHOOKS}/{made['id']}/test").json()
    same = caller.key.workspace_id
    other = service.make_caller(mode="test", workspace_id=same if stranger == "the other mode" else None)
    for method, rest in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/secret"),
        ("POST", "/test"),
        ("GET", "/deliveries"),
        ("GET", f"/deliveries/{sent['id']}"),
        ("POST", f"/deliveries/{sent['id']}/redeliver"),
    ):
        foreign, missing = (
            other.request(method, f"{WEBHOOKS}/{webhook_id}{rest}")
            for webhook_id in (made["id"], new_id("whk"))
        )
        assert foreign.status_code == 404
        assert {**foreign.json(), "request_id": ""} == {**missing.json(), "request_id": ""}
    assert other.get(WEBHOOKS).json()["data"] == []


def test_what_is_done_to_webhooks_is_audited_without_secrets(caller: Caller) -> None:
    made = make(caller, url=f"{LOCAL}?token=hush")
    path = f"{WEBHOOKS}/{made['id']}"
    sent = caller.post(f"{path}/test").json()
    caller.post(f"{path}/deliveries/{sent['id']}/redeliver")
    rotated = caller.post(f"{path}/secret").json()
    # What changes nothing leaves no entry.
    assert caller.request("PATCH", path, json={"events": made["events"]}).status_code == 200
    caller.delete(path)
    with caller.service.runtime.database.transaction(write=False) as db:
        entries = list(
            db.exec(select(AuditRow).filter_by(resource_id=made["id"]).order_by(col(AuditRow.number)))
        )
    assert [entry.action for entry in entries] == [
        "webhook.create",
        "webhook.test",
        "webhook.redeliver",
        "webhook.rotate_secret",
        "webhook.delete",
    ]
    assert {(entry.actor_id, entry.resource_type) for entry in entries} == {(caller.key.key_id, "webhook")}
    kept = " ".join(entry.model_dump_json() for entry in entries)
    assert not [word for word in ("hush", made["secret"], rotated["secret"]) if word in kept]


def test_the_catalogue_names_every_type_with_its_schema(caller: Caller) -> None:
    answer = caller.get("/v1/event_types")
    types = answer.json()["data"]
    assert {"next_cursor": None, "has_more": False}.items() <= answer.json().items()
    assert (answer.status_code, [item["type"] for item in types]) == (200, list(EVENT_TYPES))
    assert {tuple(item) for item in types} == {("type", "description", "available", "schema")}
    assert all(item["available"] for item in types)
    assert all(item["schema"]["properties"]["type"] == {"const": item["type"]} for item in types)


def test_the_catalogue_is_made_once(caller: Caller) -> None:
    caller.get("/v1/event_types")
    began = time.process_time()
    for _ in range(10):
        caller.get("/v1/event_types")
    assert time.process_time() - began < 0.5
