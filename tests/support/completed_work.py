"""Results that take more than a request: sealed sessions, completed exports, paths, deliveries that arrived.

Names that begin with `shown_` are made once for a service: many rows read the same object.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import orjson
from sqlmodel import select

from recorder.exports.runner.run import run_export
from recorder.models.operations import OutboxRow
from recorder.webhooks.subscriptions import WebhookSecretBox
from tests.support.delivery_loop import AT_ONCE, local_client, running_loop
from tests.support.factories import Caller, event, frame
from tests.support.sealing import seal_all
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Answer, Received, running_receiver

LONG_AGO = "2024-02-29T10:00:00Z"
_FIELD = re.compile(r"^(\w+): ?(.*)$", re.MULTILINE)
EVENTS = (event(0), event(500, "pointer_move"), event(900, "fill"))
Shown = TypeVar("Shown")


def once(make: Callable[[Caller], Shown]) -> Callable[[Caller], Shown]:
    """Call this once for each service, with a key of a workspace of its own."""
    kept: dict[int, tuple[Caller, Shown]] = {}

    @wraps(make)
    def find(caller: Caller) -> Shown:
        service = id(caller.service)
        if service not in kept:
            owner = caller.service.make_caller()
            kept[service] = (owner, make(owner))
        return kept[service][1]

    return find


def patch(caller: Caller, path: str, body: dict[str, Any]) -> Any:
    """Send a PATCH that succeeds; return its answer."""
    answer = caller.request("PATCH", path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stopped_session(caller: Caller, *events: dict[str, Any], tag: str | None = None, **body: Any) -> str:
    """Return a session of long ago with these events and a frame, stopped."""
    session_id = caller.make_session(started_at=LONG_AGO, **body)
    assert caller.add_events(session_id, *(events or EVENTS)).status_code == 202
    assert caller.add_frames(session_id, frame(400)).status_code == 202
    if tag is not None:
        assert caller.post(f"/v1/sessions/{session_id}/tags", {"name": tag}).status_code == 201
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    return session_id


def sealed_session(caller: Caller, *events: dict[str, Any], **body: Any) -> str:
    """Return the same, sealed."""
    session_id = stopped_session(caller, *events, **body)
    seal_all(caller.service.runtime)
    return session_id


def queued_export(caller: Caller, **body: Any) -> str:
    """Return an export of one sealed session with three events, two of them actions, and a frame."""
    sealed_session(caller)
    request = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}} | body
    answer = caller.post("/v1/exports", request)
    assert answer.status_code == 202, answer.text
    export_id: str = answer.json()["id"]
    return export_id


def completed_export(caller: Caller, **body: Any) -> dict[str, Any]:
    """Return the same, written."""
    export_id = queued_export(caller, **body)
    run_export(caller.service.runtime, export_id, owner="proofs")
    output: dict[str, Any] = caller.get(f"/v1/exports/{export_id}").json()
    return output


@dataclass(frozen=True)
class Dataset:
    """A completed export, with what its owner reads of it."""

    export: dict[str, Any]
    manifest: dict[str, Any]
    quota: dict[str, Any]
    #: Type and data of its events.
    events: list[tuple[str, dict[str, Any]]]


@once
def shown_dataset(caller: Caller) -> Dataset:
    """Return an export with all frames, completed."""
    export = completed_export(caller, frame_sampling={"mode": "all"})
    manifest = caller.get(f"/v1/exports/{export['id']}/manifest").json()
    return Dataset(export, manifest, caller.get("/v1/quota").json(), outbox(caller, export["id"]))


def outbox(caller: Caller, subject_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Return type and data of the events about a subject, oldest first."""
    with caller.service.runtime.database.transaction(write=False) as db:
        rows = db.exec(select(OutboxRow).where(OutboxRow.subject_id == subject_id).order_by(OutboxRow.id))
        return [(row.type, row.data) for row in rows]


@once
def shown_graph(caller: Caller) -> Caller:
    """Return the owner of a workflow with three equal sessions, and one that failed another way."""
    for states in ("abc", "abc", "abc", "ad"):
        steps = [
            event(300 * (n + 1), "click", state_key=state, url=f"https://shop.example/{state}")
            for n, state in enumerate(states)
        ]
        steps += [] if states == "abc" else [event(900, "error")]
        stopped_session(caller, *steps)
    seal_all(caller.service.runtime)
    return caller


def shown_paths(caller: Caller, query: str = "") -> list[dict[str, Any]]:
    """Return the paths of that workflow."""
    return paths_of(shown_graph(caller), query)


def paths_of(caller: Caller, query: str = "") -> list[dict[str, Any]]:
    """Return the paths of the caller's workflow."""
    answer = caller.get(f"/v1/memory/paths?workflow=checkout{query}")
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def make_webhook(caller: Caller, **body: Any) -> dict[str, Any]:
    """Return a webhook made over HTTP; nothing listens where it leads to."""
    request = {"url": "http://127.0.0.1:9/hooks", "events": ["session.created"], **body}
    answer = caller.post("/v1/webhooks", request)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


@contextmanager
def delivering(caller: Caller, *listed: str) -> Iterator[None]:
    """Run the service's own delivery loop for the block; it may keep the answers of listed addresses."""
    runtime = caller.service.runtime
    box, client = WebhookSecretBox(runtime.settings.secret), local_client(*listed)
    with running_loop(runtime.database, box=box, client=client, schedule=AT_ONCE):
        yield


@dataclass(frozen=True)
class Sent:
    """A delivery that arrived: its webhook, its record, and what came."""

    owner: Caller
    webhook: dict[str, Any]
    record: dict[str, Any]
    request: Received


@once
def shown_delivery(caller: Caller) -> Sent:
    """Return a test event to a webhook whose secret was rotated once, answered with 5,000 letters."""
    with (
        running_receiver(Answer(200, "x" * 5_000)) as receiver,
        delivering(caller, receiver.url.removeprefix("http://")),
    ):
        webhook = make_webhook(caller, url=f"{receiver.url}/hooks")
        address = f"/v1/webhooks/{webhook['id']}"
        assert caller.post(f"{address}/secret").status_code == 200
        assert caller.post(f"{address}/test").status_code == 202
        wait_for(lambda: caller.get(f"{address}/deliveries").json()["data"][0]["status"] == "succeeded")
        (record,) = caller.get(f"{address}/deliveries").json()["data"]
        (request,) = receiver.received
        return Sent(caller, webhook, record, request)


@once
def shown_notifications(caller: Caller) -> tuple[Caller, list[dict[str, Any]]]:
    """Return the deliveries of `session.created` for three sessions, and their owner."""
    with running_receiver(Answer(204)) as receiver, delivering(caller):
        make_webhook(caller, url=f"{receiver.url}/hooks")
        for _ in range(3):
            caller.make_session(status="created")
        wait_for(lambda: len(receiver.received) == 3)
        return caller, [orjson.loads(request.body) for request in receiver.received]


@once
def shown_recording(caller: Caller) -> tuple[Caller, str]:
    """Return a sealed session and its owner."""
    return caller, sealed_session(caller)


def streamed_over_http(caller: Caller, session_id: str, **headers: str) -> list[dict[str, Any]]:
    """Return the messages of a sealed session's server-sent events, from the start by default."""
    query = "" if headers else "?from=start"
    answer = caller.get(f"/v1/sessions/{session_id}/events/stream{query}", **headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
    blocks = [dict(_FIELD.findall(block)) for block in answer.text.split("\n\n")]
    return [orjson.loads(block["data"]) for block in blocks if "data" in block]


def streamed_over_socket(caller: Caller, session_id: str, query: str = "from=start") -> list[dict[str, Any]]:
    """Return the same over a WebSocket."""
    messages = []
    with caller.service.client.websocket_connect(
        f"/v1/sessions/{session_id}/events/ws?{query}",
        headers={"Authorization": f"Bearer {caller.key.key}"},
    ) as socket:
        while (message := socket.receive())["type"] == "websocket.send":
            messages.append(orjson.loads(message["text"]))
    assert message["code"] == 1000
    return messages
