"""Stops of large sessions, whose events are searched for outcome marks: limited. Contract §1."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import anyio.to_thread

from api.fair_slots import WORK_SLOTS, FairSlots
from recorder import limits
from recorder.access.concurrency import ConcurrencyLimiter
from tests.support.factories import Caller, Service, assert_problem, event
from tests.support.query_plans import noted_statements
from tests.support.recorded_sessions import execute
from tests.support.statements import before_each_statement
from tests.support.waiting import wait_for

STOPS = "/v1/sessions:batch_stop"


def make_large_session(
    service: Service, caller: Caller, event_bytes: int = limits.LARGE_SEARCH_BYTES + 1
) -> str:
    """Record a session that counts as large; return its id."""
    session_id = caller.make_session()
    caller.add_events(session_id, event(1, "error"))
    execute(
        service.runtime,
        "UPDATE sessions SET event_bytes = :bytes WHERE id = :id",
        bytes=event_bytes,
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
            caller.post(STOPS, {"ids": [small, large]}),
        ):
            assert_problem(answer, 429, "rate_limited")
            assert answer.headers["X-Scope"] == "per_workspace_concurrency"
            assert int(answer.headers["Retry-After"]) >= 1
        assert caller.get(f"/v1/sessions/{small}").json()["status"] == "recording"
        assert other.post(f"/v1/sessions/{others_large}/stop").json()["outcome"] == "error"
        assert caller.post(f"/v1/sessions/{small}/stop").json()["status"] == "stopped"
    assert caller.post(f"/v1/sessions/{large}/stop").json()["outcome"] == "error"
    assert searches.count == 0


def test_a_batch_of_small_sessions_counts_by_the_sum_of_their_events(
    service: Service, caller: Caller
) -> None:
    ids = [make_large_session(service, caller, limits.LARGE_SEARCH_BYTES // 2 + 1) for _ in range(2)]
    searches: ConcurrencyLimiter = service.app.state.large_searches
    with ExitStack() as held:
        for _ in range(limits.LARGE_SEARCHES_PER_WORKSPACE):
            held.enter_context(searches.acquire("key_other", caller.key.workspace_id))
        assert_problem(caller.post(STOPS, {"ids": ids}), 429, "rate_limited")
        assert caller.get(f"/v1/sessions/{ids[0]}").json()["status"] == "recording"
        assert caller.post(STOPS, {"ids": [ids[0], ids[0]]}).json()["stopped"] == 1
    assert caller.post(STOPS, {"ids": ids}).json()["stopped"] == 1
    assert caller.get(f"/v1/sessions/{ids[1]}").json()["outcome"] == "error"
    assert searches.count == 0


def test_a_refused_batch_stop_searches_nothing(caller: Caller) -> None:
    recording = caller.make_session()
    caller.add_events(recording, event(1, "error"))
    answered = {"ids": [caller.make_session()]}
    assert caller.post(STOPS, answered, key="k").json()["stopped"] == 1
    with noted_statements() as noted:
        unknown = [f"ses_{number:026}" for number in range(limits.BATCH_STOP_IDS)]
        assert_problem(caller.post(STOPS, {"ids": [recording, *unknown]}), 422, "too_many_ids")
        reused = caller.post(STOPS, {"ids": [recording]}, key="k")
        assert_problem(reused, 422, "idempotency_key_reused")
        assert caller.post(STOPS, answered, key="k").headers["Idempotent-Replayed"] == "true"
    assert not [statement for statement, _ in noted if "FROM event_batches" in statement]
    assert caller.get(f"/v1/sessions/{recording}").json()["status"] == "recording"


def test_searches_of_large_sessions_leave_threads_and_turns_to_others(service: Service) -> None:
    callers = [service.make_caller() for _ in range(4)]
    other = service.make_caller()
    small = other.make_session()
    each = limits.LARGE_SEARCHES_PER_WORKSPACE
    large = {caller: [make_large_session(service, caller) for _ in range(each)] for caller in callers}
    go_on = threading.Event()

    def wait(statement: str) -> None:
        if "FROM event_batches" in statement:
            assert go_on.wait(30)

    slots: FairSlots = service.app.state.work_slots["stop search"]
    with before_each_statement(wait), ThreadPoolExecutor(len(callers) * each) as threads:
        sent = [
            threads.submit(caller.post, f"/v1/sessions/{session_id}/stop")
            for caller, ids in large.items()
            for session_id in ids
        ]
        try:
            wait_for(lambda: slots.count_waiting() == len(sent) - WORK_SLOTS["stop search"])
            portal = service.client.portal
            assert portal is not None
            limiter = portal.call(anyio.to_thread.current_default_thread_limiter)
            wait_for(lambda: limiter.borrowed_tokens == WORK_SLOTS["stop search"])
            assert other.post("/v1/sessions", {"workflow": "checkout"}).status_code == 201
            assert other.get(f"/v1/sessions/{small}").json()["status"] == "recording"
        finally:
            go_on.set()
        assert {request.result().status_code for request in sent} == {200}
    assert other.post(f"/v1/sessions/{small}/stop").json()["status"] == "stopped"
