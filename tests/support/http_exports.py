"""Exports that are requested over HTTP and run, and the files at their addresses."""

from typing import Any

import pytest

from recorder.exports.runner.run import run_export
from tests.support.factories import Caller
from tests.support.sealed_sessions import Recording, seal

BODY = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}

# fmt: off
MEMBERS = {
    "id", "status", "workflow", "format", "filter", "frame_sampling",
    "split", "destination", "tag", "rows", "shards",
    "shard_size_bytes", "frames", "actions", "manifest_url", "progress", "error", "created_at",
    "completed_at",
}
# fmt: on


@pytest.fixture
def owner(caller: Caller) -> Caller:
    """Return a caller whose workspace has sealed sessions of two workflows."""
    runtime, workspace_id = caller.service.runtime, caller.key.workspace_id
    seal(runtime, [Recording(frames=[0, 600]), Recording(outcome="error")], workspace_id=workspace_id)
    seal(runtime, [Recording(workflow="login")], workspace_id=workspace_id)
    return caller


def export(owner: Caller, **body: Any) -> dict[str, Any]:
    """Request an export and run it; return it."""
    created = owner.post("/v1/exports", BODY | body).json()
    run_export(owner.service.runtime, created["id"], owner="test")
    shown: dict[str, Any] = owner.get(f"/v1/exports/{created['id']}").json()
    return shown


def keyless(owner: Caller, url: str, **headers: str) -> Any:
    """Return the answer to a request without a key."""
    return owner.service.client.get(url, headers=headers)


def first_shard(owner: Caller, shown: dict[str, Any]) -> dict[str, Any]:
    """Return the first entry of a hosted export's manifest."""
    shard: dict[str, Any] = keyless(owner, shown["manifest_url"]).json()["shards"][0]
    return shard
