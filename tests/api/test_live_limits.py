"""Limits of the live sandbox over HTTP: replays and recoveries share one surface. Spec §8.1, contract §8."""

from collections.abc import Iterator
from typing import Any

import pytest

from api.gate.endpoints import Endpoint
from recorder.access.rate_tiers import TIERS
from recorder.ids import new_id
from tests.support.factories import Caller, Service, assert_problem
from tests.support.failing_runs import make_run
from tests.support.limiter_clock import Clock, stopped_clock, use, use_by_many_keys
from tests.support.replay_requests import allow_hosts, get_recovery, get_replay
from tests.support.two_click_sessions import replay_all

NOWHERE = {"session_id": "ses_00000000000000000000000000", "sandbox": "live"}
USUAL = ("Open", "Review", "Approve")
RATES = TIERS["default"].rates["live_replays"]
#: Draws on the live bucket alone, as a POST of either kind does.
LIVE = Endpoint("POST", "/v1/recoveries", "write", "live_replays")


@pytest.fixture(autouse=True)
def clock(service: Service) -> Iterator[Clock]:
    """Stop the clock of the buckets, unless a test advances it."""
    with stopped_clock(service) as stopped:
        yield stopped


@pytest.fixture
def caller(service: Service) -> Caller:
    """Return a key of a new workspace with the limits of the specification, which may replay live."""
    return service.make_caller(scope="admin replay:live", tier="default")


def recover(caller: Caller, session_id: str) -> dict[str, Any]:
    """Recover a failed session live, as far as that goes without a browser; return the recovery."""
    answer = caller.post("/v1/recoveries", {"session_id": session_id, "sandbox": "live"})
    assert answer.status_code == 202, answer.text
    replay_all(caller)
    return get_recovery(caller, answer.json()["id"])


def recover_through_two_attempts(caller: Caller) -> None:
    """Recover a session live; assert that its attempts are a dry replay and a live one."""
    allow_hosts(caller, "erp.example")
    make_run(caller, *USUAL)
    recovery = recover(caller, make_run(caller, *USUAL, error_at=3_200, seal=True))
    attempts = [get_replay(caller, replay_id) for replay_id in recovery["replay_ids"]]
    assert [(attempt["sandbox"], attempt["status"]) for attempt in attempts] == [
        ("dry", "completed"),
        ("live", "queued"),
    ]


def assert_left_of_key(caller: Caller, count: int) -> None:
    """Assert that the key may ask for so many live replays or recoveries more, and for no more."""
    for number in range(count):
        path = ("/v1/replays", "/v1/recoveries")[number % 2]
        assert caller.post(path, NOWHERE).status_code == 404
    refused = caller.post("/v1/recoveries", NOWHERE)
    assert_problem(refused, 429, "rate_limited")
    assert refused.headers["x-scope"] == "per_key"


def test_a_live_recovery_draws_one_request_of_its_key_and_its_attempts_none(caller: Caller) -> None:
    recover_through_two_attempts(caller)
    assert_left_of_key(caller, RATES.per_key.burst - 1)


def test_a_live_recovery_draws_one_request_of_its_workspace_and_its_attempts_none(caller: Caller) -> None:
    recover_through_two_attempts(caller)
    left = RATES.per_workspace.burst - 1
    while left > 1:
        count = min(left - 1, RATES.per_key.burst)
        use(caller, LIVE, count, key_id=new_id("key"))
        left -= count
    assert caller.post("/v1/recoveries", NOWHERE).status_code == 404
    refused = caller.post("/v1/recoveries", NOWHERE)
    assert_problem(refused, 429, "rate_limited")
    assert refused.headers["x-scope"] == "per_workspace"


def test_attempts_run_while_the_bucket_is_empty(caller: Caller) -> None:
    allow_hosts(caller, "erp.example")
    make_run(caller, *USUAL)
    session_id = make_run(caller, *USUAL, error_at=3_200, seal=True)
    use(caller, LIVE, RATES.per_key.burst - 1)
    recovery = recover(caller, session_id)
    assert len(recovery["replay_ids"]) == 2
    assert_left_of_key(caller, 0)


@pytest.mark.parametrize("path", ["/v1/replays", "/v1/recoveries"])
def test_a_workspace_that_asked_for_too_many_is_refused_by_all_its_keys(caller: Caller, path: str) -> None:
    use_by_many_keys(caller, LIVE, RATES)
    refused = caller.post(path, NOWHERE)
    assert_problem(refused, 429, "rate_limited")
    assert refused.headers["x-scope"] == "per_workspace"


def test_what_asks_for_no_live_replay_draws_nothing(service: Service, caller: Caller) -> None:
    without_scope = service.make_caller(workspace_id=caller.key.workspace_id, scope="write")
    for path in ("/v1/replays", "/v1/recoveries"):
        for _ in range(RATES.per_key.burst):
            assert caller.post(path, NOWHERE | {"sandbox": "dry"}).status_code == 404
            assert_problem(caller.post(path, NOWHERE | {"policy": {"ok": 2}}), 422, "validation_failed")
            assert_problem(without_scope.post(path, NOWHERE), 403, "insufficient_scope")
    assert_left_of_key(caller, RATES.per_key.burst)
