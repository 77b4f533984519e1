"""Spec §6: every event type, its payload, how it is delivered and signed, streams."""

import asyncio
import hashlib
import hmac
import re
from typing import Any

from recorder.exports.runner.finalize import fail_export_of_cancelled_run
from recorder.net.outbound_client import OutboundClient
from recorder.tenant import GraphScope, Tenant
from tests.support.completed_work import (
    LONG_AGO,
    make_webhook,
    outbox,
    queued_export,
    sealed_session,
    shown_dataset,
    shown_delivery,
    shown_notifications,
    shown_recording,
    streamed_over_http,
    streamed_over_socket,
)
from tests.support.delivery_loop import local_client
from tests.support.drift_workflow import BASELINE, NEEDED, Story
from tests.support.factories import Caller, event
from tests.support.raw_servers import raw_server
from tests.support.specification import ROWS as ALL_ROWS
from tests.support.specification_checks import Rows

ROWS = Rows()


def eventful_session(caller: Caller) -> str:
    """Return a session that causes all six events of a session."""
    session_id = caller.make_session(started_at=LONG_AGO)
    caller.add_events(session_id, event(5, "error"))
    caller.post(f"/v1/sessions/{session_id}/tags", {"name": "seen"})
    caller.post(f"/v1/sessions/{session_id}/stop")
    return session_id


#: The status that the session shows at the moment of each event.
_SESSION_EVENTS = {
    "session.created": "created",
    "session.started": "recording",
    "session.stopped": "stopped",
    "session.tagged": "recording",
    "session.error": "stopped",
}


def session_event(name: str, status: str) -> None:
    """Enter the check of one event of a session."""

    @ROWS.row(f"6.1 {name}")
    def check_1(caller: Caller) -> None:
        types = outbox(caller, eventful_session(caller))
        ((_, data),) = [item for item in types if item[0] == name]
        assert data["session"]["status"] == status


for _name, _status in _SESSION_EVENTS.items():
    session_event(_name, _status)


@ROWS.row("6.1 session.sealed")
def check_session_sealed(caller: Caller) -> None:
    types = outbox(caller, sealed_session(caller))
    assert types[-1][0] == "session.sealed" and types[-1][1]["session"]["status"] == "sealed"


@ROWS.row("6.1 export.queued")
def check_export_queued(caller: Caller) -> None:
    ((type, data),) = outbox(caller, queued_export(caller))
    assert (type, data["export"]["status"]) == ("export.queued", "queued")


@ROWS.row("6.1 export.completed")
def check_export_completed(caller: Caller) -> None:
    type, data = shown_dataset(caller).events[-1]
    assert (type, data["export"]["rows"]) == ("export.completed", 3)


@ROWS.row("6.1 export.failed")
def check_export_failed(caller: Caller) -> None:
    export_id = queued_export(caller)
    fail_export_of_cancelled_run(caller.service.runtime, export_id, owner="proofs")
    type, data = outbox(caller, export_id)[-1]
    assert (type, data["export"]["status"], data["export"]["error"]["code"]) == (
        "export.failed",
        "failed",
        "cancelled",
    )


def quota_events(caller: Caller, minutes: int) -> list[str]:
    """Return the quota events of a workspace of 1,000 minutes that captured so many."""
    trial = caller.service.make_caller(tier="trial")
    trial.add_events(trial.make_session(started_at=LONG_AGO), event(minutes * 60_000))
    return [type for type, _ in outbox(trial, trial.key.workspace_id) if type.startswith("quota.")]


@ROWS.row("6.1 quota.warning")
def check_quota_warning(caller: Caller) -> None:
    assert [quota_events(caller, minutes) for minutes in (799, 800)] == [[], ["quota.warning"]]


@ROWS.row("6.1 quota.exhausted")
def check_quota_exhausted(caller: Caller) -> None:
    assert quota_events(caller, 1_000) == ["quota.warning", "quota.exhausted"]


def drift_events(caller: Caller, live: str) -> dict[str, dict[str, Any]]:
    """Return the drift events of a workflow that gets such sessions after its baseline; data by type."""
    stranger = caller.service.make_caller()
    scope = GraphScope(Tenant(stranger.key.workspace_id, "live"), "checkout")
    story = Story(caller.service.runtime.database, scope)
    story.add(BASELINE + live)
    story.look()
    return {event.type: event.data for event in story.events()}


@ROWS.row("6.1 memory.drift.new_node")
def check_memory_drift_new_node(caller: Caller) -> None:
    assert drift_events(caller, "ab" * NEEDED) == {}
    data = drift_events(caller, "nb" * NEEDED)["memory.drift.new_node"]
    assert list(data) == ["workflow", "node", "window", "baseline", "graph_version"]
    assert (data["node"]["label"], data["baseline"]["seen"]) == ("Click n", 0)


@ROWS.row("6.1 memory.drift.path_disappeared")
def check_memory_drift_path_disappeared(caller: Caller) -> None:
    assert drift_events(caller, "a" * (NEEDED - 1)) == {}
    data = drift_events(caller, "a" * NEEDED)["memory.drift.path_disappeared"]
    assert list(data) == ["workflow", "path", "last_seen_at", "baseline_frequency", "window"]
    assert (data["baseline_frequency"], data["window"]["seen"]) == (0.5, 0)


@ROWS.row("6.1 catalogue")
def check_catalogue(caller: Caller) -> None:
    page = caller.get("/v1/event_types")
    types = {entry["type"] for entry in page.json()["data"]} - {"webhook.test"}
    assert types == {row.removeprefix("6.1 ") for row in event_rows()}
    assert make_webhook(caller, events=sorted(types))["events"] == sorted(types)


def event_rows() -> list[str]:
    """Return the keys of the rows of §6.1 that name a type, whether its part is built or not."""
    return [row.key for row in ALL_ROWS if row.section == "6.1" and "." in row.name]


def payloads(caller: Caller) -> list[dict[str, Any]]:
    """Return the deliveries of three sessions."""
    return shown_notifications(caller)[1]


@ROWS.row("6.2 id")
def check_id(caller: Caller) -> None:
    ids = [payload["id"] for payload in payloads(caller)]
    assert all(re.fullmatch("evt_[0-9a-z]{26}", item) for item in ids) and len(set(ids)) == 3


@ROWS.row("6.2 type")
def check_type(caller: Caller) -> None:
    assert {payload["type"] for payload in payloads(caller)} == {"session.created"}


@ROWS.row("6.2 created_at")
def check_created_at(caller: Caller) -> None:
    shown = [payload["created_at"] for payload in payloads(caller)]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z", item) for item in shown)


@ROWS.row("6.2 data")
def check_data(caller: Caller) -> None:
    assert all(set(payload) == {"id", "type", "created_at", "data"} for payload in payloads(caller))


@ROWS.row("6.2 data.session")
def check_data_session(caller: Caller) -> None:
    owner, notifications = shown_notifications(caller)
    for payload in notifications:
        shown = payload["data"]["session"]
        assert owner.get(f"/v1/sessions/{shown['id']}").json() == shown


@ROWS.row("6.3 method")
def check_method(caller: Caller) -> None:
    assert shown_delivery(caller).request.method == "POST"


@ROWS.row("6.3 content type")
def check_content_type(caller: Caller) -> None:
    assert shown_delivery(caller).request.headers["content-type"] == "application/json"


@ROWS.row("6.3 timeout")
def check_timeout(caller: Caller) -> None:
    assert OutboundClient.__init__.__kwdefaults__["total_s"] == 10.0
    with raw_server(b"", until=b"never sent") as receiver:
        url = f"http://127.0.0.1:{receiver.port}/hooks"
        exchange = asyncio.run(local_client().post(url, {}, b"{}"))
    assert exchange.error == "timeout" and exchange.duration_ms > 9_900


@ROWS.row("6.4 header")
def check_header(caller: Caller) -> None:
    sent = shown_delivery(caller)
    header = sent.request.headers["service-signature"]
    assert re.fullmatch(r"t=\d{10},v1=[0-9a-f]{64},v1=[0-9a-f]{64}", header)
    signed = f"{header[2:12]}.".encode() + sent.request.body
    expected = hmac.new(sent.webhook["secret"].encode(), signed, hashlib.sha256).hexdigest()
    assert f"v1={expected}" in header.split(",")


@ROWS.row("6.5 events")
def check_events(caller: Caller) -> None:
    owner, session_id = shown_recording(caller)
    for read in (streamed_over_http, streamed_over_socket):
        messages = read(owner, session_id)
        assert [message["data"]["t_ms"] for message in messages if message["event"] == "session.event"] == [
            0,
            500,
            900,
        ]
