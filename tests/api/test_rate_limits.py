"""Rate limits over HTTP: each surface, both scopes, the four headers everywhere. Spec §8.1, contract §1."""

import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.gate.endpoints import ENDPOINTS, Endpoint
from recorder.access.rate_tiers import SIGNED_READS, STRANGERS, SURFACES, WEBHOOK_CALLS
from recorder.ids import new_id
from recorder.models.workspace import WorkspaceRow
from tests.support.factories import Caller, Service, assert_problem
from tests.support.limiter_clock import TIER, Clock, limit_headers, stopped_clock, use, use_by_many_keys

#: The first address of each surface.
FIRST = {endpoint.surface: endpoint for endpoint in reversed(ENDPOINTS)} | {
    endpoint.live_surface: replace(endpoint, surface=endpoint.live_surface)
    for endpoint in reversed(ENDPOINTS)
    if endpoint.live_surface is not None
}
#: Body without which a request does not draw on a surface.
BODIES = {"live_replays": {"session_id": "ses_00000000000000000000000000", "sandbox": "live"}}


@pytest.fixture(autouse=True)
def clock(service: Service) -> Iterator[Clock]:
    """Stop the clock of the buckets, unless a test advances it."""
    with stopped_clock(service) as stopped:
        yield stopped


@pytest.fixture
def caller(service: Service) -> Caller:
    """Return a key of a new workspace with the limits of the specification."""
    return service.make_caller(scope="admin replay:live", tier="default")


def call(caller: Caller, endpoint: Endpoint) -> Any:
    """Send a request to an endpoint; its ids name nothing."""
    path = re.sub(r"\{\w+(:path)?\}", "unknown", endpoint.path)
    return caller.request(endpoint.method, path, json=BODIES.get(endpoint.surface))


def test_every_surface_has_an_address() -> None:
    assert set(FIRST) == set(SURFACES)


@pytest.mark.parametrize("surface", FIRST)
def test_a_key_that_asks_too_often_is_told_when_to_come_again(
    caller: Caller, clock: Clock, surface: Any
) -> None:
    endpoint, rate = FIRST[surface], TIER.rates[surface].per_key
    use(caller, endpoint, rate.burst - 1)
    last = call(caller, endpoint)
    assert last.status_code != 429
    assert limit_headers(last)[:2] == (rate.burst, 0)
    refused = call(caller, endpoint)
    detail = assert_problem(refused, 429, "rate_limited")["detail"]
    window = "second" if rate.window_s == 1 else "minute"
    assert detail.startswith(
        f"The limit of `{surface}` for this key ({rate.limit:,} a {window}) is reached; try again in "
    )
    wait_s = int(refused.headers["retry-after"])
    assert wait_s == max(1, math.ceil(1 / rate.per_second))
    limit, remaining, reset, scope = limit_headers(refused)
    assert (limit, remaining, scope) == (rate.burst, 0, "per_key")
    assert abs(reset - (time.time() + wait_s)) <= 2
    clock.now += wait_s
    assert call(caller, endpoint).status_code != 429


@pytest.mark.parametrize("surface", FIRST)
def test_a_workspace_that_asks_too_often_is_refused_by_all_its_keys(caller: Caller, surface: Any) -> None:
    endpoint, rates = FIRST[surface], TIER.rates[surface]
    use_by_many_keys(caller, endpoint, rates)
    refused = call(caller, endpoint)
    assert_problem(refused, 429, "rate_limited")
    assert int(refused.headers["retry-after"]) == max(1, math.ceil(1 / rates.per_workspace.per_second))
    assert limit_headers(refused)[::3] == (rates.per_workspace.burst, "per_workspace")
    # Its own bucket gave nothing for the refusal.
    assert limit_headers(call(caller, next(e for e in ENDPOINTS if e.surface != surface)))[3] == "per_key"


def test_a_refused_request_takes_nothing_from_the_other_bucket(caller: Caller, clock: Clock) -> None:
    endpoint = FIRST["exports"]
    use_by_many_keys(caller, endpoint, TIER.rates["exports"])
    for _ in range(10):
        assert call(caller, endpoint).status_code == 429
    clock.now += 2.0  # one request for the workspace; the key's bucket is full still
    assert limit_headers(call(caller, endpoint))[1] == 0
    clock.now += 58.0
    assert limit_headers(call(caller, endpoint))[:2] == (5, 4)


def test_the_headers_tell_of_the_bucket_of_which_the_smallest_part_is_left(caller: Caller) -> None:
    endpoint, rates = FIRST["reads"], TIER.rates["reads"]
    assert limit_headers(call(caller, endpoint))[:2] == (rates.per_key.burst, rates.per_key.burst - 1)
    for _ in range(rates.per_workspace.burst // rates.per_key.burst - 1):
        use(caller, endpoint, rates.per_key.burst, key_id=new_id("key"))
    assert limit_headers(call(caller, endpoint))[3] == "per_workspace"


def test_reset_is_the_second_by_which_the_bucket_is_full(caller: Caller) -> None:
    use(caller, FIRST["exports"], 2)
    before = time.time()
    reset = limit_headers(call(caller, FIRST["exports"]))[2]
    assert before + 36 <= reset <= time.time() + 37


def test_surfaces_do_not_draw_on_each_other_and_the_rest_share_one(caller: Caller) -> None:
    use(caller, FIRST["create_session"], 60)
    assert call(caller, FIRST["create_session"]).status_code == 429
    assert caller.get("/v1/limits").status_code == 200
    use(caller, FIRST["other"], 99)
    assert caller.get("/v1/limits").status_code == 429
    assert caller.post("/v1/sessions/ses_unknown/stop").status_code == 429
    assert caller.get("/v1/nowhere").status_code == 429
    assert caller.get("/v1/sessions").status_code == 200


def test_workspaces_do_not_draw_on_each_other(service: Service, caller: Caller) -> None:
    use_by_many_keys(caller, FIRST["exports"], TIER.rates["exports"])
    assert call(caller, FIRST["exports"]).status_code == 429
    assert call(service.make_caller(tier="default"), FIRST["exports"]).status_code != 429


def test_live_and_test_keys_share_the_limit_of_their_workspace(service: Service, caller: Caller) -> None:
    use_by_many_keys(caller, FIRST["exports"], TIER.rates["exports"])
    other = service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    assert call(other, FIRST["exports"]).status_code == 429


def test_a_batch_is_one_request(caller: Caller) -> None:
    session_id = caller.make_session()
    items = [{"t_ms": n, "type": "click"} for n in range(100)]
    answer = caller.add_events(session_id, *items)
    assert (answer.status_code, limit_headers(answer)[1]) == (202, 1999)


def test_a_refused_request_does_nothing(caller: Caller) -> None:
    session_id = caller.make_session()
    use(caller, FIRST["append_events"], 2000)
    assert caller.add_events(session_id, {"t_ms": 0, "type": "click"}).status_code == 429
    assert caller.get(f"/v1/sessions/{session_id}").json()["event_count"] == 0


def test_strangers_share_the_bucket_of_their_address_and_keys_do_not(
    service: Service, caller: Caller, clock: Clock
) -> None:
    assert caller.get("/v1/sessions").status_code == 200
    for left in reversed(range(STRANGERS.burst)):
        answer = service.client.get("/v1/sessions")
        assert answer.status_code == 401
        assert limit_headers(answer)[:2] == (STRANGERS.burst, left)
    refused = service.client.get("/v1/sessions", headers={"Authorization": "Bearer nsk_local_guess"})
    assert_problem(refused, 429, "rate_limited")
    assert limit_headers(refused)[3] == "per_address"
    assert caller.get("/v1/sessions").status_code == 200
    clock.now += 1.0
    assert service.client.get("/v1/sessions").status_code == 401


@pytest.mark.parametrize(
    ("address", "shared_with_the_first"),
    [
        ("2001:db8:0:1::2", True),
        ("2001:db8:0:2::1", False),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
    ],
)
def test_an_address_of_version_6_is_known_by_its_network(
    service: Service, address: str, shared_with_the_first: bool
) -> None:
    left = []
    for client_address in ("2001:db8:0:1::1", address):
        client = TestClient(service.app, client=(client_address, 50_000))
        left.append(limit_headers(client.get("/v1/sessions"))[1])
    assert left == [39, 38 if shared_with_the_first else 39]


def test_an_address_of_version_4_is_the_same_in_either_form(service: Service) -> None:
    left = []
    for client_address in ("192.0.2.1", "::ffff:192.0.2.1"):
        client = TestClient(service.app, client=(client_address, 50_000))
        left.append(limit_headers(client.get("/v1/sessions"))[1])
    assert left == [39, 38]


def test_signed_downloads_have_a_bucket_of_their_own_by_address(service: Service) -> None:
    address = "/v1/exports/exp_unknown/files/a.parquet?sig=none"
    for _ in range(STRANGERS.burst):
        service.client.get("/v1/sessions")
    answer = service.client.get(address)
    assert answer.status_code != 429
    assert limit_headers(answer)[::3] == (SIGNED_READS.burst, "per_address")
    for _ in range(SIGNED_READS.burst - 1):
        assert service.client.get(address).status_code == answer.status_code
    assert_problem(service.client.get(address), 429, "rate_limited")


@pytest.mark.parametrize("action", ["test", "deliveries/dlv_01k00000000000000000000000/redeliver"])
def test_a_webhook_is_called_ten_times_a_minute_at_most(caller: Caller, clock: Clock, action: str) -> None:
    address = f"/v1/webhooks/whk_01k00000000000000000000000/{action}"
    for _ in range(WEBHOOK_CALLS.burst):
        assert caller.post(address).status_code == 404
    refused = caller.post(address)
    assert_problem(refused, 429, "rate_limited")
    assert limit_headers(refused)[:2] == (10, 0)
    assert (refused.headers["x-scope"], refused.headers["retry-after"]) == ("per_webhook", "6")
    other = "/v1/webhooks/whk_01k00000000000000000000001/test"
    assert caller.post(other).status_code == 404
    clock.now += 6.0
    assert caller.post(address).status_code == 404


def test_nobody_empties_the_bucket_of_a_foreign_webhook(service: Service, caller: Caller) -> None:
    address = "/v1/webhooks/whk_01k00000000000000000000000/test"
    for _ in range(WEBHOOK_CALLS.burst + 1):
        service.make_caller(tier="default").post(address)
    assert caller.post(address).status_code == 404


def test_a_new_tier_is_in_force_for_the_next_request(caller: Caller) -> None:
    use(caller, FIRST["exports"], 5)
    assert call(caller, FIRST["exports"]).status_code == 429
    change(caller, tier="scale")
    caller.service.app.state.caller_cache.forget_workspace(caller.key.workspace_id)
    limit, remaining, _, _ = limit_headers(caller.get("/v1/limits"))
    assert (limit, remaining) == (1000, 999)
    assert limit_headers(call(caller, FIRST["exports"]))[0] == 50


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/docs", "/openapi.json", "/nowhere"])
def test_beyond_v1_the_headers_only_tell(service: Service, path: str) -> None:
    shown = [limit_headers(service.client.get(path)) for _ in range(3)]
    assert {item[:2] + item[3:] for item in shown} == {(STRANGERS.burst, STRANGERS.burst, "per_address")}


def test_the_headers_are_on_every_error(service: Service, caller: Caller) -> None:
    reader = service.make_caller(scope="read", tier="default")
    suspended = service.make_caller(tier="default")
    change(suspended, status="suspended")
    session_id = caller.make_session()
    answers = {
        400: caller.post_raw("/v1/sessions", b"{"),
        401: service.client.get("/v1/sessions"),
        403: reader.post("/v1/sessions", {"workflow": "checkout"}),
        404: caller.get("/v1/nowhere"),
        405: caller.request("PUT", "/v1/sessions"),
        413: caller.post_raw("/v1/sessions", b"x" * 1_100_000),
        415: caller.post_raw("/v1/sessions", b"{}", content_type="text/plain"),
        422: caller.get("/v1/sessions?limit=0"),
        409: caller.post(f"/v1/sessions/{caller.make_session(status='stopped')}/start"),
        202: caller.add_events(session_id, {"t_ms": 0, "type": "click"}),
        204: caller.delete(f"/v1/sessions/{session_id}"),
    }
    for status, answer in answers.items():
        assert answer.status_code == status, answer.text
        limit, remaining, reset, scope = limit_headers(answer)
        assert 0 <= remaining <= limit and reset >= int(time.time()) - 1
        assert scope == ("per_address" if status == 401 else "per_key")
    disabled = suspended.get("/v1/sessions")
    assert_problem(disabled, 403, "workspace_disabled")
    assert limit_headers(disabled)


def test_what_the_scope_refuses_costs_no_token(service: Service) -> None:
    reader = service.make_caller(scope="read", tier="default")
    body = {"workflow": "checkout"}
    shown = [limit_headers(reader.post("/v1/sessions", body))[:2] for _ in range(3)]
    assert shown == [(60, 60)] * 3


def test_a_fault_of_ours_carries_the_headers_too(service: Service, caller: Caller) -> None:
    ingest, service.app.state.ingest = service.app.state.ingest, None
    try:
        answer = caller.add_events("ses_unknown", {"t_ms": 0, "type": "click"})
    finally:
        service.app.state.ingest = ingest
    assert_problem(answer, 500, "internal_error")
    assert limit_headers(answer)[:2] == (2000, 1999)


def change(caller: Caller, **fields: str) -> None:
    """Change the row of a caller's workspace, as its operator does."""
    with caller.service.runtime.database.transaction(write=True) as db:
        row = db.get_one(WorkspaceRow, caller.key.workspace_id)
        for name, value in fields.items():
            setattr(row, name, value)
        db.add(row)
