"""Deliveries over HTTP: tested, listed, read, sent again. Spec §4.4, contract §6."""

from recorder.ids import new_id
from recorder.models.webhook import Delivery
from recorder.webhooks.dispatcher import OutboxDispatcher
from recorder.webhooks.subscriptions import WebhookSecretBox
from tests.support.delivery_loop import AT_ONCE, local_client, running_loop
from tests.support.factories import Caller, Service, assert_problem
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Answer, running_receiver
from tests.support.webhooks import LOCAL, WEBHOOKS, make


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


def test_a_record_tells_what_was_sent_and_what_came_back(caller: Caller) -> None:
    runtime = caller.service.runtime
    box = WebhookSecretBox(runtime.settings.secret)
    answers = (Answer(500, {"reason": "full"}, {"X-Why": "full"}), Answer(200, {"ok": True}))
    with (
        running_receiver(*answers) as receiver,
        running_loop(
            runtime.database,
            box=box,
            schedule=AT_ONCE,
            client=local_client(receiver.url.removeprefix("http://")),
        ),
    ):
        path = f"{WEBHOOKS}/{make(caller, url=f'{receiver.url}/in')['id']}"
        answer = caller.post(f"{path}/test")
        wait_for(lambda: caller.get(f"{path}/deliveries").json()["data"][0]["status"] == "succeeded")
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
    assert received["x-request-id"] == answer.headers["x-request-id"]
    assert first["duration_ms"] >= 0


def test_of_an_answer_from_this_machine_the_status_alone_is_kept(caller: Caller) -> None:
    runtime = caller.service.runtime
    box = WebhookSecretBox(runtime.settings.secret)
    answers = (Answer(500, {"password": "hunter2"}, {"X-Inside": "1"}), Answer(200, {"ok": True}))
    with running_receiver(*answers) as receiver, running_loop(runtime.database, box=box, schedule=AT_ONCE):
        path = f"{WEBHOOKS}/{make(caller, url=f'{receiver.url}/in')['id']}"
        caller.post(f"{path}/test")
        wait_for(lambda: caller.get(f"{path}/deliveries").json()["data"][0]["status"] == "succeeded")
    second, first = caller.get(f"{path}/deliveries").json()["data"]
    nothing = {"headers": {}, "body": "", "body_truncated": False}
    assert (first["response"], second["response"]) == ({"status": 500, **nothing}, {"status": 200, **nothing})


def test_events_that_a_full_webhook_does_not_get_are_shown(caller: Caller) -> None:
    made = make(caller, url=LOCAL, events=["session.created"])
    path, dispatcher = f"{WEBHOOKS}/{made['id']}", OutboxDispatcher(most_pending=1)
    sessions = [caller.post("/v1/sessions", {"workflow": "checkout"}).json() for _ in range(3)]
    with caller.service.runtime.database.transaction(write=True) as db:
        dispatcher.dispatch(db)
    shown = caller.get(path).json()["skipped_events"]
    assert (set(shown), shown["count"]) == ({"count", "first_at", "last_at"}, 2)
    assert sessions[0]["created_at"] <= shown["first_at"] <= shown["last_at"]
    assert caller.get(WEBHOOKS).json()["data"][0]["skipped_events"] == shown
    [waiting] = caller.get(f"{path}/deliveries").json()["data"]
    assert caller.post(f"{path}/test").status_code == 202
    assert caller.post(f"{path}/deliveries/{waiting['id']}/redeliver").status_code == 202


def test_limits_show_the_most_pending_deliveries(caller: Caller) -> None:
    shown = caller.get("/v1/limits").json()["webhooks"]
    assert shown == {"per_workspace": 100, "pending_deliveries": 10_000}
