"""Limits of several API processes that share a Redis, with it and without it. Spec §8.1, decision 0012."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.gate.rate_limiter import RateLimiter
from benchmarks.redis_server import RedisServer
from recorder.access import keys
from recorder.access.rate_tiers import STRANGERS, TIERS
from recorder.errors import RateLimited
from recorder.tenant import Tenant
from tests.support.factories import Caller, Service, assert_problem
from tests.support.limiter_clock import limit_headers
from tests.support.redis_server import running_redis
from tests.support.sealed_sessions import accept_stores, make_settings

EXPORT = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}


@contextmanager
def sharing(folder: Path, database_url: str, redis_url: str) -> Iterator[tuple[Service, Service]]:
    """Yield two applications on one database and one Redis."""
    settings = accept_stores(make_settings(folder, database_url=database_url, redis_url=redis_url))
    with ExitStack() as stack:
        services = []
        for app in (create_app(settings), create_app(settings)):
            client = stack.enter_context(TestClient(app, raise_server_exceptions=False))
            services.append(Service(app, client, app.state.runtime))
        yield services[0], services[1]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """Yield a Redis."""
    with running_redis() as running:
        yield running


@pytest.fixture(scope="module")
def services(
    database_url: str, tmp_path_factory: pytest.TempPathFactory, server: RedisServer
) -> Iterator[tuple[Service, Service]]:
    """Yield two processes of a deployment, as far as clients can distinguish them."""
    with sharing(tmp_path_factory.mktemp("service"), database_url, server.url) as both:
        yield both


@pytest.fixture
def callers(services: tuple[Service, Service]) -> tuple[Caller, Caller]:
    """Return one new key, at both processes."""
    return make_callers(services)


def make_callers(services: tuple[Service, Service]) -> tuple[Caller, Caller]:
    """Make a key, for requests to both."""
    caller = services[0].make_caller(tier="default")
    both = caller, Caller(services[1], caller.key)
    for item in both:
        # A key that is new to a process needs a token of its address once.
        while item.get("/v1/limits").status_code == 429:
            time.sleep(0.02)
    return both


def test_a_key_has_one_bucket_wherever_it_asks(callers: tuple[Caller, Caller]) -> None:
    left = [limit_headers(callers[n % 2].post("/v1/exports", EXPORT))[1] for n in range(5)]
    assert left == [4, 3, 2, 1, 0]
    for caller in callers:
        refused = caller.post("/v1/exports", EXPORT)
        assert_problem(refused, 429, "rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 12


def test_refused_requests_are_under_way_no_longer(callers: tuple[Caller, Caller]) -> None:
    refused = TIERS["default"].requests_per_key + 1
    statuses = [callers[0].post("/v1/exports", EXPORT).status_code for _ in range(5 + refused)]
    assert statuses == [404] * 5 + [429] * refused
    assert callers[0].get("/v1/limits").status_code == 200


def test_bytes_have_one_bucket_wherever_they_are_sent(callers: tuple[Caller, Caller]) -> None:
    rate, part = TIERS["default"].body_bytes.per_key, 40_000_000
    granted, began = 0, time.monotonic()
    refusals = []
    for n in range(40):
        caller = callers[n % 2]
        error = caller.service.client.portal.call(pay_bytes, caller, part)  # type: ignore[union-attr]
        granted += part if error is None else 0
        refusals += [] if error is None else [error.scope]
    passed_s = time.monotonic() - began
    assert set(refusals) == {"per_key_bytes"}
    assert rate.burst - part < granted <= rate.burst + rate.per_second * passed_s
    # Small requests do not ask for bytes, and go on.
    assert callers[0].get("/v1/limits").status_code == 200


async def pay_bytes(caller: Caller, count: int) -> RateLimited | None:
    """Charge a caller's bytes at its process, as a body of so many does."""
    limiting: RateLimiter = caller.service.app.state.rate_limiter
    who = keys.Caller(Tenant(caller.key.workspace_id, "live"), caller.key.key_id, tier=TIERS["default"])
    return (await limiting.pay_bytes(limiting.plan_of(who, None), count)).error


def test_beyond_v1_nothing_is_drawn_from_redis_either(services: tuple[Service, Service]) -> None:
    remaining = [limit_headers(service.client.get("/healthz"))[1] for service in services for _ in range(5)]
    assert remaining == sorted(remaining)


def test_strangers_have_one_bucket_too(services: tuple[Service, Service]) -> None:
    first, second = services
    statuses = (first.client.get("/v1/sessions").status_code for _ in range(2_000))
    assert 429 in statuses
    # So much comes back in half a second.
    assert limit_headers(second.client.get("/v1/sessions"))[1] <= STRANGERS.limit // 2


def test_without_redis_every_request_is_answered_and_still_limited(database_url: str, tmp_path: Path) -> None:
    with running_redis() as server, sharing(tmp_path, database_url, server.url) as services:
        callers = make_callers(services)
        assert limit_headers(callers[0].post("/v1/exports", EXPORT))[1] == 4
        server.stop()
        for caller in callers:
            statuses = [caller.post("/v1/exports", EXPORT).status_code for _ in range(6)]
            assert statuses == [404] * 5 + [429]
            assert caller.get("/v1/limits").status_code == 200
