"""A workspace and mode with one of everything, made over HTTP: what others must not reach."""

from dataclasses import dataclass
from typing import Any

from recorder import clock
from recorder.exports.runner.run import run_export
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.replays.replay_policy import DECISION_TIME
from tests.support.completed_work import EVENTS, make_webhook, stopped_session
from tests.support.factories import Caller, Service, event, frame
from tests.support.sealing import seal_all


@dataclass(frozen=True)
class TenantContents:
    """Contents of a workspace and mode: its administrator, and the id of each kind of thing."""

    admin: Caller
    ids: dict[str, str]


def make_tenant_contents(
    service: Service, name: str, mode: Any = "live", workspace_id: str | None = None
) -> TenantContents:
    """Create two objects of every kind, so that every list has a second page.

    Args:
        name: prefix that makes its workflows and tags differ from others.
    """
    caller = service.make_caller(mode=mode, workspace_id=workspace_id)
    workflow = f"{name}_work"
    export_id, queued_id, empty_id = _exports(caller, workflow)
    session_id = _recording_session(caller, workflow, name)
    _recording_session(caller, f"{name}_rest", name)
    webhook = make_webhook(caller)
    make_webhook(caller)
    deliveries = [caller.post(f"/v1/webhooks/{webhook['id']}/test").json()["id"] for _ in range(2)]
    for _ in range(2):
        key = caller.post("/v1/keys", {"label": name, "scope": "read"}).json()
    erasure = caller.post("/v1/privacy/erasure", {"subject": f"{name} nowhere", "scope": "all"}).json()
    path, _ = caller.get(f"/v1/memory/paths?workflow={workflow}").json()["data"]
    sealed = caller.get(f"/v1/sessions?path={path['path_id']}").json()["data"]
    frames = caller.get(f"/v1/sessions/{session_id}/frames").json()["data"]
    events = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    manifest = caller.get(f"/v1/exports/{export_id}/manifest").json()
    body = {"session_id": sealed[0]["id"], "sandbox": "dry"}
    replay, awaiting = (
        caller.post("/v1/replays", body | {"mode": kind}).json() for kind in ("full", "guided")
    )
    with service.runtime.database.transaction(write=True) as db:
        for step in (1, 2):
            made = {"event_id": f"evt_{step}", "outcome": "matched", "delivery": "confirmed"}
            db.add(ReplayStepRow(replay_id=replay["id"], step=step, **made))
        row = db.get_one(ReplayRow, awaiting["id"])
        row.status, row.awaiting_step, row.awaiting_until = "running", 1, clock.now() + DECISION_TIME
        db.add(row)
    assert caller.post(f"/v1/sessions/{sealed[0]['id']}/tags", {"name": "stuck"}).status_code == 201
    stuck = body | {"failure_tag": "stuck"}
    recovery, _ = (caller.post("/v1/recoveries", stuck).json() for _ in range(2))
    ids = {
        "session_id": session_id,
        "frame_id": frames[0]["id"],
        "event_id": events[0]["id"],
        "export_id": export_id,
        "queued_id": queued_id,
        "empty_id": empty_id,
        "webhook_id": webhook["id"],
        "delivery_id": deliveries[0],
        "key_id": key["id"],
        "erasure_id": erasure["id"],
        "replay_id": replay["id"],
        "awaiting_id": awaiting["id"],
        "recovery_id": recovery["id"],
        "workflow": workflow,
        "file": manifest["shards"][0]["path"],
        "path_id": path["path_id"],
        "sealed_id": sealed[0]["id"],
    }
    return TenantContents(caller, ids)


def _recording_session(caller: Caller, workflow: str, tag: str) -> str:
    session_id = caller.make_session(workflow=workflow)
    caller.add_events(session_id, event(1), event(2))
    snapshot = {"v": 1, "format": "nodes", "html": ["html", ["body", tag]]}
    caller.add_frames(session_id, frame(1, dom=snapshot), frame(2, 9, dom=snapshot))
    for _ in range(2):
        caller.post(f"/v1/sessions/{session_id}/tags", {"name": tag})
    return session_id


def _exports(caller: Caller, workflow: str) -> tuple[str, str, str]:
    """Create three exports: one that is completed, one that waits, and an empty one that is completed."""
    stopped_session(caller, *EVENTS, workflow=workflow)
    stopped_session(caller, event(1, "scroll", state_key="elsewhere"), workflow=workflow)
    seal_all(caller.service.runtime)
    body = {"workflow": workflow, "format": "parquet", "destination": {"kind": "signed_url"}}
    first, second = (caller.post("/v1/exports", body).json()["id"] for _ in range(2))
    empty = caller.post("/v1/exports", body | {"filter": {"tag": "nowhere"}}).json()["id"]
    for export_id in (first, empty):
        run_export(caller.service.runtime, export_id, owner="tests")
    return first, second, empty
