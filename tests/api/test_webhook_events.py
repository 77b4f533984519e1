"""Every event type that this release emits, from its cause to a receiver. Spec §6.1, §6.2; contract §6."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from recorder.exports.runner.run import run_export
from recorder.ids import new_id
from recorder.models.session import SessionRow
from recorder.models.webhook import Notification
from recorder.runtime import Runtime
from recorder.tenant import GraphScope, Tenant
from recorder.webhooks.catalogue import EVENT_TYPES
from recorder.webhooks.signing import verify_signature
from recorder.webhooks.subscriptions import WebhookSecretBox
from tests.support.delivery_loop import running_loop
from tests.support.drift_workflow import BASELINE, NEEDED, Story
from tests.support.factories import Caller, Service, event
from tests.support.failing_runs import make_run
from tests.support.sealing import seal_all
from tests.support.two_click_sessions import OTHER, PAGE, replay_all, sealed_run
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Answer, Received, Receiver, running_receiver

EMITTED = [type for type, kind in EVENT_TYPES.items() if kind.is_emitted]
MINUTE = 60_000
EXPORT = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "local", "path": "out"}}


@contextmanager
def told_all(caller: Caller) -> Iterator[tuple[Receiver, str]]:
    """Yield a receiver of all events of a workspace, and the secret that signs them."""
    runtime = caller.service.runtime
    with (
        running_receiver(Answer(204)) as receiver,
        running_loop(runtime.database, box=WebhookSecretBox(runtime.settings.secret)),
    ):
        body = {"url": f"{receiver.url}/in", "events": list(EVENT_TYPES)}
        yield receiver, caller.post("/v1/webhooks", body).json()["secret"]


def bring_all_about(caller: Caller) -> None:
    """Produce every event of the service once."""
    runtime = caller.service.runtime
    replay_thrice(caller)
    recover_twice(caller)
    session_id = caller.make_session(started_at="2024-02-29T10:00:00.000Z")
    caller.add_events(session_id, event(850 * MINUTE))
    caller.add_events(session_id, event(1_000 * MINUTE))
    caller.post(f"/v1/sessions/{session_id}/tags", {"name": "error", "data": {"step": 3}})
    caller.post(f"/v1/sessions/{session_id}/stop")
    seal_all(runtime)
    run_export(runtime, caller.post("/v1/exports", EXPORT).json()["id"], owner="tests")
    lose_rows(runtime, session_id)
    run_export(runtime, caller.post("/v1/exports", EXPORT).json()["id"], owner="tests")
    let_drift(caller)


def replay_thrice(caller: Caller) -> None:
    """Run a replay that is completed, one that diverges, and one that fails."""
    same, changed = (sealed_run(caller, first=page, workflow="approve") for page in (PAGE, OTHER))
    for against in (same, changed):
        body = {"session_id": same, "sandbox": "dry", "against": {"session_id": against}}
        caller.post("/v1/replays", body)
        replay_all(caller)
    made = caller.post("/v1/replays", {"session_id": same, "sandbox": "dry"}).json()["id"]
    caller.post(f"/v1/replays/{made}/cancel")


def recover_twice(caller: Caller) -> None:
    """Run a recovery that succeeds, and one that fails."""
    usual = ("Open", "Review", "Approve")
    make_run(caller, *usual)
    body = {"session_id": make_run(caller, *usual, error_at=3_200, seal=True), "sandbox": "dry"}
    caller.post("/v1/recoveries", body)
    replay_all(caller)
    made = caller.post("/v1/recoveries", body).json()["id"]
    caller.post(f"/v1/recoveries/{made}/cancel")


def let_drift(caller: Caller) -> None:
    """Record a workflow in which a node appears while a path stops."""
    scope = GraphScope(Tenant(caller.key.workspace_id, "live"), "refunds")
    story = Story(caller.service.runtime.database, scope)
    story.add(BASELINE + "n" * NEEDED)
    story.look()


def lose_rows(runtime: Runtime, session_id: str) -> None:
    """Delete the rows of a sealed session from the lake."""
    with runtime.database.transaction(write=True) as db:
        sealed = db.get_one(SessionRow, session_id)
        db.add(SessionRow(**sealed.model_dump() | {"id": new_id("ses")}))


@pytest.fixture(scope="module")
def story(service: Service) -> tuple[list[Received], str]:
    """Return the deliveries to a receiver of every event, in the order of their ids, and the secret."""
    caller = service.make_caller(tier="trial")
    with told_all(caller) as (receiver, secret):
        bring_all_about(caller)
        wait_for(lambda: {payload(item)["type"] for item in receiver.received} >= set(EMITTED))
    return sorted(receiver.received, key=lambda item: item.headers["webhook-id"]), secret


def payload(request: Received) -> dict[str, Any]:
    """Return the body of a delivery."""
    read: dict[str, Any] = orjson.loads(request.body)
    return read


def test_every_emitted_type_arrives_once_in_the_order_of_what_happened(
    story: tuple[list[Received], str],
) -> None:
    assert [payload(request)["type"] for request in story[0]] == [
        *(["session.created", "session.started", "session.tagged", "session.stopped", "session.sealed"] * 2),
        "replay.queued",
        "replay.running",
        "replay.completed",
        "replay.queued",
        "replay.running",
        "replay.diverged",
        "replay.queued",
        "replay.failed",
        *(["session.created", "session.started", "session.tagged", "session.stopped"] * 2),
        *("session.error", "session.sealed", "session.sealed"),
        "recovery.started",
        *("replay.queued", "replay.running", "replay.completed"),
        *("recovery.succeeded", "recovery.started", "recovery.failed"),
        "session.created",
        "session.started",
        "quota.warning",
        "quota.exhausted",
        "session.tagged",
        "session.stopped",
        "session.error",
        "session.sealed",
        "export.queued",
        "export.completed",
        "export.queued",
        "export.failed",
        "memory.drift.new_node",
        "memory.drift.path_disappeared",
    ]


def test_every_payload_is_as_the_catalogue_says(service: Service, story: tuple[list[Received], str]) -> None:
    catalogue = service.make_caller().get("/v1/event_types").json()["data"]
    schemas = {item["type"]: item["schema"] for item in catalogue}
    for request in story[0]:
        notice = payload(request)
        Draft202012Validator(schemas[notice["type"]]).validate(notice)
        # The models know of no members beyond theirs: nothing is left out of the schemas.
        Notification[EVENT_TYPES[notice["type"]].data].model_validate(notice)  # type: ignore[name-defined]


def test_every_delivery_is_signed_and_names_its_event(story: tuple[list[Received], str]) -> None:
    requests, secret = story
    for request in requests:
        notice = payload(request)
        assert verify_signature(request.body, request.headers["service-signature"], secret)
        assert (list(notice), notice["id"]) == (
            ["id", "type", "created_at", "data"],
            request.headers["webhook-id"],
        )
    assert len({request.headers["service-delivery-id"] for request in requests}) == len(requests)


def test_session_events_hold_the_session_as_it_was_then(story: tuple[list[Received], str]) -> None:
    payloads = [payload(request) for request in story[0]]
    sessions = {item["type"]: item["data"]["session"] for item in payloads if "session" in item["data"]}
    assert {type: session["status"] for type, session in sessions.items()} == {
        "session.created": "created",
        "session.started": "recording",
        "session.tagged": "recording",
        "session.stopped": "stopped",
        "session.error": "stopped",
        "session.sealed": "sealed",
    }
    assert sessions["session.created"]["started_at"] is None
    assert (sessions["session.sealed"]["outcome"], sessions["session.sealed"]["event_count"]) == ("error", 2)


def test_what_is_told_beside_the_session_is_what_caused_it(story: tuple[list[Received], str]) -> None:
    data = {payload(request)["type"]: payload(request)["data"] for request in story[0]}
    assert (data["session.tagged"]["tag"]["name"], data["session.tagged"]["tag"]["data"]) == (
        "error",
        {"step": 3},
    )
    error = data["session.error"]["error"]
    assert (error["source"], error["name"], error["id"]) == (
        "tag",
        "error",
        data["session.tagged"]["tag"]["id"],
    )
    assert [data[type]["used"] for type in ("quota.warning", "quota.exhausted")] == [850, 1_000]
    assert (data["quota.warning"]["metric"], data["quota.warning"]["limit"]) == ("captured_minutes", 1_000)
    assert (data["export.completed"]["export"]["rows"], data["export.failed"]["export"]["error"]["code"]) == (
        2,
        "rows_missing",
    )


def test_a_request_s_id_reaches_the_receiver(caller: Caller) -> None:
    with told_all(caller) as (receiver, _):
        answer = caller.post("/v1/sessions", {"workflow": "checkout"})
        wait_for(lambda: receiver.received)
    assert receiver.received[0].headers["x-request-id"] == answer.headers["x-request-id"]


def test_a_call_that_changes_nothing_is_not_told(caller: Caller) -> None:
    with told_all(caller) as (receiver, _):
        session_id = caller.make_session(status="stopped")
        caller.post(f"/v1/sessions/{session_id}/stop")
        caller.make_session(status="created")
        wait_for(lambda: len(receiver.received) == 4)
    types = sorted(payload(request)["type"] for request in receiver.received)
    assert types == ["session.created", "session.created", "session.started", "session.stopped"]


def test_each_mode_is_told_of_its_own_alone(service: Service, caller: Caller) -> None:
    tester = service.make_caller(mode="test", workspace_id=caller.key.workspace_id)
    with told_all(caller) as (live, _), told_all(tester) as (test, _):
        ids = [item.make_session(status="created") for item in (caller, tester)]
        wait_for(lambda: live.received and test.received)
    assert [[payload(item)["data"]["session"]["id"] for item in each.received] for each in (live, test)] == [
        [session_id] for session_id in ids
    ]


def test_drift_explains_itself(story: tuple[list[Received], str]) -> None:
    data = {payload(request)["type"]: payload(request)["data"] for request in story[0]}
    gone, new = data["memory.drift.path_disappeared"], data["memory.drift.new_node"]
    assert (gone["workflow"], gone["baseline_frequency"], gone["window"]["seen"]) == ("refunds", 0.5, 0)
    assert gone["path"]["labels"] == ["Click e", "Click f", "Click g"]
    assert gone["window"]["explanation"].startswith(f"0 of the last {NEEDED} sessions took this path; ")
    assert (new["node"]["label"], new["baseline"]["seen"], new["graph_version"]) == ("Click n", 0, 1)
    assert (new["window"]["needed"], new["window"]["seen"], new["window"]["days"]) == (13, 13, 2)
