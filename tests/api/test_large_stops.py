"""Stops of large sessions, whose events are searched for outcome marks: limited. Contract §1."""

from contextlib import ExitStack

from recorder import limits
from recorder.access.concurrency import ConcurrencyLimiter
from tests.support.factories import Caller, Service, assert_problem, event
from tests.support.recorded_sessions import execute


def make_large_session(service: Service, caller: Caller) -> str:
    """Record a session that counts as large; return its id."""
    session_id = caller.make_session()
    caller.add_events(session_id, event(1, "error"))
    execute(
        service.runtime,
        "UPDATE sessions SET event_bytes = :bytes WHERE id = :id",
        bytes=limits.LARGE_SEARCH_BYTES + 1,
        id=session_id,
    )
    return session_id


def test_one_workspace_cannot_hold_all_searches_of_large_sessions(service: Service, caller: Caller) -> None:
    other = service.make_caller()
    large, small = make_large_session(service, caller), caller.make_session()
    others_large = make_large_session(service, other)
    searches: ConcurrencyLimiter = service.app.state.large_searches
    with ExitStack() as held:
        for _ in range(limits.LARGE_SEARCHES_PER_WORKSPACE):
            held.enter_context(searches.acquire("key_other", caller.key.workspace_id))
        for answer in (
            caller.post(f"/v1/sessions/{large}/stop"),
            caller.post("/v1/sessions:batch_stop", {"ids": [small, large]}),
        ):
            assert_problem(answer, 429, "rate_limited")
            assert answer.headers["X-Scope"] == "per_workspace_concurrency"
            assert int(answer.headers["Retry-After"]) >= 1
        assert caller.get(f"/v1/sessions/{small}").json()["status"] == "recording"
        assert other.post(f"/v1/sessions/{others_large}/stop").json()["outcome"] == "error"
        assert caller.post(f"/v1/sessions/{small}/stop").json()["status"] == "stopped"
    assert caller.post(f"/v1/sessions/{large}/stop").json()["outcome"] == "error"
    assert searches.count == 0
