"""`GET /metrics`: who may read it, and that its numbers are those of what happened. Contract §9."""

import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from api.app import create_app
from recorder import clock
from recorder.metrics import REGISTRY
from recorder.models.governance import PurgeRow
from recorder.service_state import count_backlog
from tests.support.completed_work import make_webhook, shown_delivery, shown_recording, streamed_over_socket
from tests.support.factories import Caller, Service, assert_problem, event, frame
from tests.support.query_plans import noted_statements, plan_of
from tests.support.recorded_sessions import execute
from tests.support.sealed_sessions import make_settings

LOCAL = ("127.0.0.1", 50_000)


def client_at(service: Service, host: str) -> TestClient:
    """Return a client of the running app that sits at an address; the app is not started again."""
    return TestClient(service.app, client=(host, 50_000), raise_server_exceptions=False)


def scrape(service: Service) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every sample by its name and labels."""
    answer = client_at(service, "127.0.0.1").get("/metrics")
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def grown(before: dict[Any, float], after: dict[Any, float], name: str, **labels: str) -> float:
    """Return the growth of a sample."""
    key = (name, frozenset(labels.items()))
    return after[key] - before.get(key, 0.0)


def wait_for_commits(service: Service, before: dict[Any, float], count: int) -> dict[Any, float]:
    """Return the samples once so many groups more were counted: the writer counts when it has answered."""
    until = time.monotonic() + 10
    while grown(before, after := scrape(service), "recorder_ingest_commit_seconds_count") != count:
        assert time.monotonic() < until
    return after


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_may_read(service: Service, host: str) -> None:
    assert client_at(service, host).get("/metrics").status_code == 200


@pytest.mark.parametrize("host", ["10.0.0.7", "203.0.113.9", "2001:db8::1", "::ffff:10.0.0.1", "unix", ""])
def test_elsewhere_it_is_as_if_it_were_not_there(service: Service, host: str) -> None:
    problem = assert_problem(client_at(service, host).get("/metrics"), 404, "not_found")
    missing = assert_problem(client_at(service, host).get("/nothing"), 404, "not_found")
    assert problem["resource"] == missing["resource"] == "route"


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_what_a_proxy_on_this_machine_brings_is_not_local(service: Service, header: str) -> None:
    answer = client_at(service, "127.0.0.1").get("/metrics", headers={header: "127.0.0.1"})
    assert_problem(answer, 404, "not_found")


def test_an_api_key_opens_it_to_nobody(caller: Caller) -> None:
    assert_problem(caller.get("/metrics"), 404, "not_found")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Yield a service whose operator set a token."""
    folder: Path = tmp_path_factory.mktemp("guarded")
    with TestClient(create_app(make_settings(folder, metrics_token="scrape-me")), client=LOCAL) as client:
        yield client


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (None, 401, "missing_authorization"),
        ("Bearer scrape-m", 401, "invalid_api_key"),
        ("Bearer scrape-mé", 401, "invalid_api_key"),
        ("Bearer ", 401, "invalid_api_key"),
        ("Basic scrape-me", 401, "invalid_api_key"),
    ],
)
def test_with_a_token_nobody_reads_without_it(
    guarded: TestClient, sent: str | None, status: int, code: str
) -> None:
    headers = {} if sent is None else {"Authorization": sent.encode()}
    answer = guarded.get("/metrics", headers=headers)
    assert_problem(answer, status, code)
    assert answer.headers["www-authenticate"] == "Bearer"


def test_with_a_token_it_is_read_from_anywhere(guarded: TestClient) -> None:
    far = TestClient(guarded.app, client=("203.0.113.9", 1))
    assert far.get("/metrics", headers={"Authorization": "Bearer scrape-me"}).status_code == 200


def test_requests_are_counted_by_route_and_status(caller: Caller) -> None:
    before = scrape(caller.service)
    for _ in range(3):
        caller.get("/v1/sessions/ses_unknown")
    after = scrape(caller.service)
    route = {"method": "GET", "route": "/v1/sessions/{session_id}"}
    assert grown(before, after, "recorder_http_requests_total", **route, status="404") == 3
    assert grown(before, after, "recorder_http_request_duration_seconds_count", **route) == 3


def test_a_stream_is_counted_and_adds_no_duration(caller: Caller) -> None:
    owner, session_id = shown_recording(caller)
    before = scrape(caller.service)
    streamed_over_socket(owner, session_id)
    after = scrape(caller.service)
    route = {"method": "GET", "route": "/v1/sessions/{session_id}/events/ws"}
    assert grown(before, after, "recorder_http_requests_total", **route, status="101") == 1
    durations = ("recorder_http_request_duration_seconds_count", frozenset(route.items()))
    assert after.get(durations, 0.0) == before.get(durations, 0.0)


def test_made_up_addresses_and_methods_share_a_label(caller: Caller) -> None:
    caller.get("/v1/made/up")
    families = len(scrape(caller.service))
    for n in range(20):
        caller.get(f"/v1/made/up/{n}")
        caller.request(f"MADE{n}", f"/v1/up/{n}")
    assert len(scrape(caller.service)) - families <= 40


def test_items_and_commits_of_ingest_are_counted(caller: Caller) -> None:
    session_id = caller.make_session()
    before = scrape(caller.service)
    caller.add_events(session_id, event(1), event(2, id="evt_a"), key="b-1")
    caller.add_events(session_id, event(1), event(2, id="evt_a"), key="b-1")  # answered before
    caller.add_events(session_id, event(2, id="evt_a"), event(3))  # one of them a duplicate
    caller.add_frames(session_id, frame(1), frame(2, 9))
    caller.add_events("ses_unknown", event(1))
    after = wait_for_commits(caller.service, before, 5)
    assert grown(before, after, "recorder_ingest_items_total", kind="events") == 3
    assert grown(before, after, "recorder_ingest_items_total", kind="frames") == 2
    assert grown(before, after, "recorder_ingest_group_batches_sum") == 3


def test_what_waits_is_read_from_the_database(caller: Caller) -> None:
    before = scrape(caller.service)
    caller.make_session(status="stopped")
    caller.post(
        "/v1/exports",
        {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}},
    )
    after = scrape(caller.service)
    assert grown(before, after, "recorder_sessions_to_seal") == 1
    assert grown(before, after, "recorder_exports", status="queued") == 1
    assert grown(before, after, "recorder_outbox_pending") == 4  # created, started, stopped, queued
    assert after[("recorder_outbox_oldest_seconds", frozenset())] >= 0


def test_waiting_events_are_counted_by_their_index_alone(caller: Caller) -> None:
    caller.make_session()
    database = caller.service.runtime.database
    with noted_statements() as noted, database.transaction(write=False) as db:
        count_backlog(db)
    (counted,) = [statement for statement in noted if "min(outbox.id)" in statement[0]]
    if not database.is_sqlite:
        execute(caller.service.runtime, "ANALYZE outbox")
    plan = plan_of(database, *counted)
    assert "ix_outbox_pending" in plan and ("COVERING INDEX" in plan or "Only Scan" in plan), plan


def test_open_and_overdue_erasures_and_purges_are_counted(caller: Caller) -> None:
    session_id = caller.make_session(actor={"id": "ada", "kind": "human"})
    before = scrape(caller.service)
    erasure = caller.post("/v1/privacy/erasure", {"subject": "ada", "scope": "all"}).json()
    caller.delete(f"/v1/sessions/{session_id}?hard=true")
    after = scrape(caller.service)
    assert grown(before, after, "recorder_erasures_open") == 1
    assert grown(before, after, "recorder_erasures_overdue") == 0
    assert grown(before, after, "recorder_purges_overdue") == 0
    due_by = datetime.fromisoformat(erasure["due_by"]).timestamp()
    assert 0 < after["recorder_erasures_due_by_timestamp_seconds", frozenset()] <= due_by + 0.001
    runtime = caller.service.runtime
    execute(runtime, "UPDATE erasures SET due_by = created_at WHERE id = :id", id=erasure["id"])
    past = clock.now() - timedelta(hours=2)
    with runtime.database.transaction(write=True) as db:
        purge = db.get_one(PurgeRow, session_id)
        purge.requested_at = past
        db.add(purge)
    late = scrape(caller.service)
    assert grown(after, late, "recorder_erasures_open") == 0
    assert grown(after, late, "recorder_erasures_overdue") == 1
    assert grown(after, late, "recorder_purges_overdue") == 1
    execute(runtime, "UPDATE erasures SET stale_tables = 'tags' WHERE id = :id", id=erasure["id"])
    assert grown(late, scrape(caller.service), "recorder_erasures_waiting_for_rewrite") == 1


def test_deliveries_are_counted_by_what_became_of_them(caller: Caller) -> None:
    before = scrape(caller.service)
    shown_delivery(caller)
    webhook = make_webhook(caller)
    caller.post(f"/v1/webhooks/{webhook['id']}/test")
    after = scrape(caller.service)
    assert grown(before, after, "recorder_deliveries_last_hour", status="succeeded") == 1
    assert grown(before, after, "recorder_deliveries_last_hour", status="pending") == 1
    assert grown(before, after, "recorder_deliveries_pending") == 1


def test_refusals_are_counted_by_their_code(caller: Caller) -> None:
    limited = caller.service.make_caller(tier="default")
    body = {"workflow": "none", "format": "parquet", "destination": {"kind": "signed_url"}}
    before = scrape(caller.service)
    statuses = [limited.post("/v1/exports", body).status_code for _ in range(7)]
    after = scrape(caller.service)
    assert (
        grown(before, after, "recorder_limit_refusals_total", code="rate_limited") == statuses.count(429) == 2
    )


def test_every_metric_of_this_service_is_ours_by_name() -> None:
    names = {family.name for family in REGISTRY.collect()}
    assert all(name.startswith(("recorder_", "process_", "python_gc_")) for name in names)
