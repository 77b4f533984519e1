"""From a recording over HTTP to a verified dataset, on both databases. Spec §1, §3, §4."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from PIL import Image
from starlette.testclient import TestClient

from api.app import create_app
from recorder.access.workspaces import create_workspace
from recorder.exports.runner.export_lease import claim_export, list_due_exports
from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.runtime import Runtime
from tests.support.sealed_sessions import make_settings
from tests.support.sealing import seal_all


@pytest.fixture(scope="module")
def client(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    app = create_app(make_settings(tmp_path_factory.mktemp("data"), database_url=database_url))
    runtime: Runtime = app.state.runtime
    with runtime.database.transaction(write=True) as db:
        key = create_workspace(db, "acme", region="us", secret=runtime.settings.secret, tier="unlimited").key
    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as client:
        yield client


def _runtime(client: TestClient) -> Runtime:
    runtime: Runtime = client.app.state.runtime  # type: ignore[attr-defined]
    return runtime


def _picture(shade: int) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48), (shade, 90, 90)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _record(client: TestClient, outcome: str) -> str:
    body = {"workflow": "checkout", "start": True, "actor": {"id": "ada", "kind": "human"}}
    session_id: str = client.post("/v1/sessions", json=body).json()["id"]
    frames = [
        {"t_ms": t_ms, "content_type": "image/png", "data": _picture(t_ms // 10)} for t_ms in (0, 900, 1800)
    ]
    events = [
        {"t_ms": 100, "type": "click", "target": {"role": "button", "name": "Säve"}},
        {"t_ms": 100, "type": "scroll"},
        {"t_ms": 950, "type": "input", "input": {"value": "x\ny"}},
        {"t_ms": 990, "type": outcome},
    ]
    assert client.post(f"/v1/sessions/{session_id}/frames", json={"frames": frames}).status_code == 202
    assert client.post(f"/v1/sessions/{session_id}/events", json={"events": events}).status_code == 202
    assert client.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    return session_id


def _export(client: TestClient, **body: Any) -> Any:
    request = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}} | body
    created = client.post("/v1/exports", json=request).json()
    run_export(_runtime(client), created["id"], owner="test")
    return client.get(f"/v1/exports/{created['id']}").json()


def test_what_was_recorded_is_what_the_dataset_holds(client: TestClient, tmp_path: Path) -> None:
    ids = [_record(client, "success"), _record(client, "error")]
    seal_all(_runtime(client))
    export = _export(client, filter={"outcome": "success", "actor.kind": "human"})
    assert (export["status"], export["rows"], export["frames"], export["actions"]) == ("completed", 4, 2, 2)
    manifest = client.get(export["manifest_url"]).json()
    for shard in manifest["shards"]:
        (tmp_path / shard["path"]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / shard["path"]).write_bytes(client.get(shard["url"]).content)
    (tmp_path / "manifest.json").write_bytes(client.get(export["manifest_url"]).content)
    assert verify_manifest(tmp_path).problems == []
    events = pl.read_parquet(tmp_path / "data/*/events-*.parquet")
    recorded = client.get(f"/v1/sessions/{ids[0]}/events").json()["data"]
    assert events["event_id"].to_list() == [event["id"] for event in recorded]
    assert events["session_id"].unique().to_list() == [ids[0]]


def test_lists_page_and_filter_alike_on_both_databases(client: TestClient) -> None:
    _record(client, "success")
    seal_all(_runtime(client))
    made = [_export(client, tag=f"v{number}")["id"] for number in range(3)]
    page = client.get("/v1/exports?workflow=checkout&status=completed&limit=2").json()
    assert [export["id"] for export in page["data"]] == made[:0:-1]


def test_a_waiting_export_is_due_until_a_run_has_it_on_both_databases(client: TestClient) -> None:
    _record(client, "success")  # the workflow must be known
    body = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    export_id = client.post("/v1/exports", json=body).json()["id"]
    database = _runtime(client).database
    with database.transaction(write=True) as db:
        due = [row.id for row in list_due_exports(db, limit=9)]
        claim_export(database, db, export_id, owner="test")
        left = [row.id for row in list_due_exports(db, limit=9)]
    assert (due, left) == ([export_id], [])
