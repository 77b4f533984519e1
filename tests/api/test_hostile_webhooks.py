"""Hostile addresses of webhooks: cases 57 to 64, 68 to 70. Contract §6.

What a hostile server does to a call (63, 65, 66, 67) is tried where no other machine is: tests/net/isolated.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from recorder import clock, limits
from recorder.ids import new_id
from recorder.models.webhook import WebhookRow
from recorder.net.addresses import AllowList
from recorder.net.outbound_guard import AddressGuard
from tests.support.factories import Caller, Service, assert_problem
from tests.support.hostile_cases import CANARY, Refused, case, judge, nothing_stored
from tests.support.isolated_calls import PUBLIC, Resolver
from tests.support.limiter_clock import stopped_clock

WEBHOOK: dict[str, Any] = {"url": "https://hooks.invalid/in", "events": ["session.sealed"]}
UNREADABLE = Refused(422, "invalid_url", pointer="/url")
NOT_ALLOWED = Refused(422, "url_not_allowed", pointer="/url")


@pytest.fixture(autouse=True)
def resolver(service: Service) -> Iterator[Resolver]:
    """Yield a resolver that answers names as a script says; the operator lists no address."""
    guard, script = service.app.state.guard, Resolver([PUBLIC])
    service.app.state.guard = AddressGuard(AllowList.parse(()), script)
    yield script
    service.app.state.guard = guard


@pytest.mark.parametrize(
    ("urls", "refused"),
    [
        case(
            57,
            [
                "file:///etc/passwd",
                "gopher://example.com/",
                "ftp://example.com/",
                "data:text/plain,x",
                "ws://a.example",
            ],
            UNREADABLE,
            name="schemes",
        ),
        case(
            57,
            [
                CANARY,
                "//example.com/",
                "https:/example.com",
                "https://",
                "https:///in",
                "https://a b.example/",
            ],
            UNREADABLE,
            name="no-address",
        ),
        case(
            57,
            ["https://a.example/\r\nX: 1", "https://a.example/\u0085", "https://a.example\\@b.example/"],
            UNREADABLE,
            name="control",
        ),
        case(
            58,
            ["https://user@example.com/", f"https://{CANARY}:secret@example.com/", "https://@example.com/"],
            UNREADABLE,
            name="userinfo",
        ),
        case(
            59,
            ["127.0.0.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1"],
            NOT_ALLOWED,
            name="private",
        ),
        case(
            60,
            [
                "2130706433",
                "0x7f000001",
                "0177.0.0.1",
                "017700000001",
                "127.1",
                "0",
                "①②⑦.⓪.⓪.①",
                "localhost.",
                "LOCALHOST",
            ],
            NOT_ALLOWED,
            name="forms-of-IPv4",
        ),
        case(
            61,
            [
                "::1",
                "::ffff:127.0.0.1",
                "::127.0.0.1",
                "::ffff:0:127.0.0.1",
                "2002:7f00:1::",
                "64:ff9b::7f00:1",
            ],
            NOT_ALLOWED,
            name="IPv4-in-IPv6",
        ),
        case(
            61,
            ["2001::1", "fec0::1", "fe80::1", "fc00::1", "3fff::1", "5f00::1", "ff02::1"],
            NOT_ALLOWED,
            name="IPv6",
        ),
        case(
            62,
            ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"],
            NOT_ALLOWED,
            name="metadata",
        ),
    ],
)
def test_an_address_that_must_not_be_called_is_refused(
    caller: Caller, resolver: Resolver, urls: list[str], refused: Refused
) -> None:
    with nothing_stored(caller.service.runtime):
        for url in urls:
            if refused is NOT_ALLOWED:
                url = f"https://[{url}]/in" if ":" in url else f"https://{url}/in"
            judge(caller.post("/v1/webhooks", WEBHOOK | {"url": url}), refused)
    assert resolver.asked == []


@pytest.mark.parametrize(
    "answer", [case(64, ["127.0.0.1"], name="one"), case(64, [PUBLIC, "10.0.0.1"], name="of-two")]
)
def test_a_name_of_a_bad_address_is_refused(caller: Caller, resolver: Resolver, answer: list[str]) -> None:
    resolver.answers = [answer]
    with nothing_stored(caller.service.runtime):
        refused = caller.post("/v1/webhooks", WEBHOOK | {"url": "https://mixed.example/in"})
        problem = judge(refused, NOT_ALLOWED)
    assert not any(address in str(problem) for address in answer)


def make(caller: Caller) -> tuple[str, str]:
    """Return the ids of a new webhook and of a delivery of it."""
    webhook_id = caller.post("/v1/webhooks", WEBHOOK).json()["id"]
    return webhook_id, caller.post(f"/v1/webhooks/{webhook_id}/test").json()["id"]


@pytest.mark.parametrize("per_minute", [case(68, 10, name="ten-a-minute")])
def test_redelivering_in_a_burst_is_limited(caller: Caller, per_minute: int) -> None:
    with stopped_clock(caller.service):
        webhook_id, delivery_id = make(caller)  # the test event draws on the same bucket
        address = f"/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver"
        statuses = [caller.post(address).status_code for _ in range(per_minute - 1)]
        with nothing_stored(caller.service.runtime):
            answer = caller.post(address)
    judge(answer, Refused(429, "rate_limited"))
    assert (set(statuses), answer.headers["x-scope"]) == ({202}, "per_webhook")
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("action", [case(69, "redeliver", name="redeliver"), case(69, "", name="read")])
def test_a_delivery_goes_with_its_webhook(caller: Caller, action: str) -> None:
    webhook_id, delivery_id = make(caller)
    assert caller.delete(f"/v1/webhooks/{webhook_id}").status_code == 204
    address = f"/v1/webhooks/{webhook_id}/deliveries/{delivery_id}"
    with nothing_stored(caller.service.runtime):
        answer = caller.post(f"{address}/{action}") if action else caller.get(address)
        judge(answer, Refused(404, "not_found", extra={"resource": "webhook"}))


@pytest.mark.parametrize("most", [case(70, 100, name="a-hundred")])
def test_one_address_may_be_registered_often_up_to_the_cap(caller: Caller, most: int) -> None:
    with caller.service.runtime.database.transaction(write=True) as db:
        for _ in range(most - 2):
            row = WebhookRow(
                id=new_id("whk"),
                workspace_id=caller.key.workspace_id,
                mode="live",
                created_at=clock.now(),
                **WEBHOOK,
            )
            db.add(row)
    first, second = (caller.post("/v1/webhooks", WEBHOOK) for _ in range(2))
    assert (first.status_code, second.status_code, most) == (201, 201, limits.WEBHOOKS_PER_WORKSPACE)
    assert first.json()["id"] != second.json()["id"]
    with nothing_stored(caller.service.runtime):
        judge(caller.post("/v1/webhooks", WEBHOOK), Refused(422, "limit_reached"))


def test_more_names_of_events_than_there_are_types_are_refused(caller: Caller) -> None:
    names = ["session.sealed"] * 101
    problem = assert_problem(
        caller.post("/v1/webhooks", WEBHOOK | {"events": names}), 422, "validation_failed"
    )
    assert [error["pointer"] for error in problem["errors"]] == ["/events"]
    webhook = caller.post("/v1/webhooks", WEBHOOK | {"events": names[:100]})
    assert webhook.status_code == 201 and webhook.json()["events"] == ["session.sealed"]
    path = f"/v1/webhooks/{webhook.json()['id']}"
    assert_problem(caller.request("PATCH", path, json={"events": ["?"] * 101}), 422, "validation_failed")
