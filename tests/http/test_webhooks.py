"""Webhooks over HTTP: made, listed, rotated, tested, redelivered, deleted. Spec §2.4, §4.4; contract §6."""

import base64
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlmodel import col, select
from starlette.testclient import TestClient

from api.app import create_app
from recorder import limits
from recorder.ids import new_id
from recorder.models.audit import AuditRow
from recorder.models.delivery import Delivery
from recorder.models.webhook import WebhookSecretRow
from recorder.webhooks.catalogue import EVENT_TYPES
from recorder.webhooks.secrets import SecretBox
from tests.delivering import AT_ONCE, running_loop, wait_until
from tests.factories import Caller, Service, assert_problem
from tests.receiver import Answer, running_receiver
from tests.sealed import make_settings

WEBHOOKS = "/v1/webhooks"
#: A name that no resolver is asked for.
URL = "https://hooks.invalid/in"
LOCAL = "http://127.0.0.1:9/in"


def body(**members: Any) -> dict[str, Any]:
    """A body of `POST /v1/webhooks`."""
    return {"url": URL, "events": ["session.sealed"], **members}


def make(caller: Caller, **members: Any) -> dict[str, Any]:
    """A webhook; returns the answer."""
    answer = caller.post(WEBHOOKS, body(**members))
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A caller of a deployment whose operator lists nothing."""
    folder = tmp_path_factory.mktemp("strict")
    app = create_app(make_settings(folder, allowed_outbound=()))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Service(app, client, app.state.runtime).make_caller()


def test_creating_answers_the_four_members_of_the_specification(caller: Caller) -> None:
    answer = caller.post(WEBHOOKS, body(description="to the ledger"))
    made = answer.json()
    assert (answer.status_code, list(made)) == (201, ["id", "url", "events", "secret"])
    assert (made["url"], made["events"]) == (URL, ["session.sealed"])
    assert made["id"].startswith("whk_") and made["secret"].startswith("whsec_")
    assert len(base64.b64decode(made["secret"].removeprefix("whsec_"), validate=True)) == 32


def test_reading_shows_all_but_the_secret(caller: Caller) -> None:
    made = make(caller, description="to the ledger")
    found = caller.get(f"{WEBHOOKS}/{made['id']}").json()
    assert list(found) == ["id", "url", "events", "description", "created_at"]
    assert (found["id"], found["description"]) == (made["id"], "to the ledger")
    assert make(caller)["secret"] not in caller.get(WEBHOOKS).text


def test_the_list_is_newest_first_and_pages(caller: Caller) -> None:
    ids = [make(caller)["id"] for _ in range(3)]
    first = caller.get(f"{WEBHOOKS}?limit=2").json()
    rest = caller.get(f"{WEBHOOKS}?limit=2&cursor={first['next_cursor']}").json()
    assert [one["id"] for one in (*first["data"], *rest["data"])] == ids[::-1]
    assert (first["has_more"], rest["has_more"], rest["next_cursor"]) == (True, False, None)


def test_events_are_kept_once_each(caller: Caller) -> None:
    assert make(caller, events=["export.failed", "quota.warning", "export.failed"])["events"] == [
        "export.failed",
        "quota.warning",
    ]


def test_every_type_of_the_catalogue_can_be_subscribed_to(caller: Caller) -> None:
    assert make(caller, events=list(EVENT_TYPES))["events"] == list(EVENT_TYPES)


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


#: Cases 57 to 62 of the hostile corpus; tests/isolated holds many more.
REFUSED = {
    "invalid_url": (
        "file:///etc/passwd",
        "gopher://example.com/",
        "ftp://example.com/",
        "javascript:alert(1)",
        "example.com/hooks",
        "https://",
        "https:///path",
        "https://user@example.com/",
        "https://user:secret@example.com/",
        "https://example.com/#part",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://exa mple.com/",
        "https://example.com\\@127.0.0.1/",
        "https://example.com/\n",
        f"https://example.com/{'x' * 2_048}",
    ),
    "url_not_allowed": (
        "http://example.invalid/",
        "https://127.0.0.1/",
        "https://10.0.0.1/",
        "https://100.64.0.1/",
        "https://localhost/",
        "https://localhost./",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://①②⑦.⓪.⓪.①/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[fec0::1]/",
        "https://169.254.169.254/latest/meta-data",
        "https://[fd00:ec2::254]/",
        "https://100.100.100.200/",
        "https://168.63.129.16/",
        "http://93.184.216.34/",
    ),
}


@pytest.mark.parametrize(("code", "url"), [(code, url) for code, urls in REFUSED.items() for url in urls])
def test_an_address_that_must_not_be_called_is_refused(strict: Caller, code: str, url: str) -> None:
    problem = assert_problem(strict.post(WEBHOOKS, body(url=url)), 422, code)
    assert [item["pointer"] for item in problem["errors"]] == ["/url"]
    assert "93.184" not in str(problem) and "169.254" not in str(problem)


@pytest.mark.parametrize("url", [URL, "https://93.184.216.34/in", "https://[2606:2800:220:1::1]:8443/in"])
def test_a_public_address_is_taken_and_a_name_that_does_not_resolve_yet(strict: Caller, url: str) -> None:
    assert strict.post(WEBHOOKS, body(url=url)).status_code == 201


@pytest.mark.parametrize("url", [LOCAL, "http://localhost:9/in", "https://127.0.0.1/in", "http://[::1]:9/in"])
def test_what_the_operator_lists_may_be_called(caller: Caller, url: str) -> None:
    assert caller.post(WEBHOOKS, body(url=url)).status_code == 201


def test_the_same_address_may_be_registered_twice(caller: Caller) -> None:
    assert make(caller)["id"] != make(caller)["id"]


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
    box = SecretBox(runtime.settings.secret)
    assert [box.open(row) for row in rows] == [made["secret"], rotated["secret"]]
    assert rows[0].expires_at is not None and rows[1].expires_at is None
    assert (rows[0].expires_at - rows[1].created_at).total_seconds() == 24 * 3600


def test_more_rotations_than_can_sign_at_once_are_refused(caller: Caller) -> None:
    made = make(caller)
    answers = [caller.post(f"{WEBHOOKS}/{made['id']}/secret") for _ in range(10)]
    assert [answer.status_code for answer in answers] == [200] * 9 + [422]
    assert_problem(answers[-1], 422, "limit_reached")


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


def test_a_test_event_waits_to_be_sent(caller: Caller) -> None:
    made = make(caller, url=LOCAL)
    answer = caller.post(f"{WEBHOOKS}/{made['id']}/test")
    sent = answer.json()
    assert (answer.status_code, set(sent)) == (202, set(Delivery.model_fields))
    assert (sent["status"], sent["trigger"], sent["attempt"], sent["redelivery_of"]) == (
        "pending",
        "manual",
        1,
        None,
    )
    assert (sent["event_type"], sent["request"]["url"], sent["request"]["headers"]) == (
        "webhook.test",
        LOCAL,
        {},
    )
    assert (sent["response"], sent["error"], sent["duration_ms"]) == (None, None, None)


def test_deliveries_are_listed_newest_first_and_read_one_by_one(caller: Caller) -> None:
    path = f"{WEBHOOKS}/{make(caller, url=LOCAL)['id']}"
    sent = [caller.post(f"{path}/test").json() for _ in range(3)]
    first = caller.get(f"{path}/deliveries?limit=2").json()
    rest = caller.get(f"{path}/deliveries?limit=2&cursor={first['next_cursor']}").json()
    assert [*first["data"], *rest["data"]] == sent[::-1]
    assert caller.get(f"{path}/deliveries/{sent[0]['id']}").json() == sent[0]


def test_a_delivery_is_found_under_its_own_webhook_alone(caller: Caller) -> None:
    path = f"{WEBHOOKS}/{make(caller, url=LOCAL)['id']}"
    sent = caller.post(f"{path}/test").json()
    other = f"{WEBHOOKS}/{make(caller)['id']}/deliveries"
    for wrong in (f"{other}/{sent['id']}", f"{path}/deliveries/{new_id('dlv')}", f"{path}/deliveries/x"):
        assert assert_problem(caller.get(wrong), 404, "not_found")["resource"] == "delivery"
        assert caller.post(f"{wrong}/redeliver").status_code == 404


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


def test_redelivering_and_testing_draw_on_ten_a_minute(service: Service) -> None:
    caller = service.make_caller(tier="default")
    path = f"{WEBHOOKS}/{make(caller, url=LOCAL)['id']}"
    sent = caller.post(f"{path}/test").json()
    answers = [caller.post(f"{path}/deliveries/{sent['id']}/redeliver") for _ in range(10)]
    assert [answer.status_code for answer in answers] == [202] * 9 + [429]
    assert_problem(answers[-1], 429, "rate_limited")
    assert (answers[-1].headers["x-scope"], int(answers[-1].headers["retry-after"]) >= 1) == (
        "per_webhook",
        True,
    )
    assert caller.post(f"{WEBHOOKS}/{make(caller, url=LOCAL)['id']}/test").status_code == 202


def test_what_is_done_to_webhooks_is_audited_without_secrets(caller: Caller) -> None:
    made = make(caller, url=f"{LOCAL}?token=hush")
    path = f"{WEBHOOKS}/{made['id']}"
    sent = caller.post(f"{path}/test").json()
    caller.post(f"{path}/deliveries/{sent['id']}/redeliver")
    rotated = caller.post(f"{path}/secret").json()
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
    assert (answer.status_code, [one["type"] for one in types]) == (200, list(EVENT_TYPES))
    assert {tuple(one) for one in types} == {("type", "description", "available", "schema")}
    later = {one["type"].partition(".")[0] for one in types if not one["available"]}
    assert later == {"replay", "recovery", "memory"}
    assert all(one["schema"]["properties"]["type"] == {"const": one["type"]} for one in types)


def test_a_record_tells_what_was_sent_and_what_came_back(caller: Caller) -> None:
    runtime = caller.service.runtime
    box = SecretBox(runtime.settings.secret)
    answers = (Answer(500, {"reason": "full"}, {"X-Why": "full"}), Answer(200, {"ok": True}))
    with running_receiver(*answers) as receiver, running_loop(runtime.database, box=box, schedule=AT_ONCE):
        path = f"{WEBHOOKS}/{make(caller, url=f'{receiver.url}/in')['id']}"
        asked = caller.post(f"{path}/test")
        wait_until(lambda: caller.get(f"{path}/deliveries").json()["data"][0]["status"] == "succeeded")
    second, first = caller.get(f"{path}/deliveries").json()["data"]
    assert (first["status"], first["attempt"], second["attempt"]) == ("failed", 1, 2)
    assert first["response"] == {
        "status": 500,
        "headers": first["response"]["headers"],
        "body": '{"reason":"full"}',
        "body_truncated": False,
    }
    assert first["response"]["headers"]["x-why"] == "full"
    assert first["next_attempt_at"] is not None and second["next_attempt_at"] is None
    assert first["request"]["body"] == second["request"]["body"] == receiver.received[0].body.decode()
    received = receiver.received[0].headers
    assert {
        name.lower(): value for name, value in first["request"]["headers"].items()
    }.items() <= received.items()
    assert received["x-request-id"] == asked.headers["x-request-id"]
    assert first["duration_ms"] >= 0
