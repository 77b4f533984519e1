"""Small makers for tests of the recording core: callers of the HTTP service, pictures, items, footprints."""

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI
from PIL import Image
from sqlmodel import func, select
from starlette.testclient import TestClient

from api.app import create_app
from recorder.access.keys import NewKey, create_key
from recorder.access.workspaces import create_workspace
from recorder.ids import new_id
from recorder.models.session import SessionRow
from recorder.models.tables import METADATA
from recorder.models.wire import Mode
from recorder.runtime import Runtime
from tests.support.sealed_sessions import accept_stores, make_settings

JSON = "application/json"


@dataclass(frozen=True)
class Service:
    """The application on databases of its own, driven in this process."""

    app: FastAPI
    client: TestClient
    runtime: Runtime

    def make_caller(
        self,
        *,
        mode: Mode = "live",
        workspace_id: str | None = None,
        scope: str = "admin",
        tier: str = "unlimited",
    ) -> "Caller":
        """Return a key, in a new workspace unless one is named."""
        secret = self.runtime.settings.secret
        with self.runtime.database.transaction(write=True) as db:
            if workspace_id is None:
                workspace_id = create_workspace(
                    db, new_id("wsp"), region="us", secret=secret, tier=tier
                ).workspace_id
            key = create_key(db, workspace_id, label="tests", scope=scope, mode=mode, secret=secret)
        return Caller(self, key)


@dataclass(frozen=True)
class Caller:
    """Client that sends requests with a key."""

    service: Service
    key: NewKey

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Send any request; `headers` are sent beside the key."""
        headers = {"Authorization": f"Bearer {self.key.key}", **options.pop("headers", {})}
        return self.service.client.request(method, path, headers=headers, **options)

    def get(self, path: str, **headers: str) -> Any:
        """Send a GET."""
        return self.request("GET", path, headers=headers)

    def delete(self, path: str) -> Any:
        """Send a DELETE."""
        return self.request("DELETE", path)

    def post(self, path: str, body: Any = None, *, key: str | None = None, **options: Any) -> Any:
        """Send a POST of JSON; `key` is its Idempotency-Key."""
        if body is not None:
            options["json"] = body
        if key is not None:
            options["headers"] = {"Idempotency-Key": key}
        return self.request("POST", path, **options)

    def post_raw(self, path: str, content: Any, *, content_type: str | None = JSON, **headers: str) -> Any:
        """Send a POST of bytes as they are (or of chunks of them)."""
        if content_type is not None:
            headers["Content-Type"] = content_type
        return self.request("POST", path, content=content, headers=headers)

    def make_session(self, *, status: str = "recording", **body: Any) -> str:
        """Create a session in one of the states that a client can bring about; return its id."""
        body = {"workflow": "checkout", "start": status != "created", **body}
        answer = self.post("/v1/sessions", body)
        assert answer.status_code == 201, answer.text
        session_id: str = answer.json()["id"]
        if status in ("stopped", "deleted"):
            assert self.post(f"/v1/sessions/{session_id}/stop").status_code == 200
        if status == "deleted":
            assert self.delete(f"/v1/sessions/{session_id}").status_code == 204
        return session_id

    def add_events(self, session_id: str, *items: dict[str, Any], key: str | None = None) -> Any:
        """Send one batch of events."""
        return self.post(f"/v1/sessions/{session_id}/events", {"events": list(items)}, key=key)

    def add_frames(self, session_id: str, *items: dict[str, Any], key: str | None = None) -> Any:
        """Send one batch of frames as JSON."""
        return self.post(f"/v1/sessions/{session_id}/frames", {"frames": list(items)}, key=key)


@contextmanager
def running_app(folder: Path, database_url: str | None = None, **chosen: Any) -> Iterator[Service]:
    """Yield the application on a folder and a database, without a server."""
    if database_url is not None:
        chosen["database_url"] = database_url
    app = create_app(accept_stores(make_settings(folder, **chosen)))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Service(app, client, app.state.runtime)


def event(t_ms: int = 0, type: str = "click", **members: Any) -> dict[str, Any]:
    """Return an event item."""
    return {"t_ms": t_ms, "type": type, **members}


def frame(t_ms: int = 0, shade: int = 0, **members: Any) -> dict[str, Any]:
    """Return a frame item with a small PNG as base64."""
    data = base64.b64encode(picture(shade)).decode()
    return {"t_ms": t_ms, "content_type": "image/png", "data": data, **members}


def picture(shade: int = 0, *, format: str = "PNG", size: tuple[int, int] = (16, 12)) -> bytes:
    """Return the bytes of a small picture."""
    file = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 0)).save(file, format)
    return file.getvalue()


def multipart(items: Any, **parts: bytes) -> dict[str, Any]:
    """Return the `files` of a multipart upload: the JSON part and the binary ones."""
    text = items if isinstance(items, bytes) else json.dumps(items).encode()
    binary = {name: (name, data, "application/octet-stream") for name, data in parts.items()}
    return {"frames": (None, text, JSON), **binary}


def footprint(runtime: Runtime) -> dict[str, Any]:
    """Return a summary of all stored data (counts, sessions, object keys): equal if nothing changed."""
    return {**stored_rows(runtime), "objects": sorted(runtime.blobs.keys("frames"))}


def stored_rows(runtime: Runtime) -> dict[str, Any]:
    """Return the number of rows of every table, and the sessions whole."""
    with runtime.database.transaction(write=False) as db:
        rows = dict(db.connection().execute(_counts()).one()._mapping)
        # As tuples: made into objects, they would take most of the time of many tests.
        sessions = sorted(map(repr, db.connection().execute(select(*SessionRow.__table__.columns))))  # type: ignore[attr-defined]
    return {"rows": rows, "sessions": sessions}


@cache
def _counts() -> Any:
    """Return a statement that counts the rows of every table."""
    return select(
        *(
            select(func.count()).select_from(table).scalar_subquery().label(table.name)
            for table in METADATA.sorted_tables
        )
    )


def json_bytes(value: Any) -> bytes:
    """Return a value as compact UTF-8 JSON."""
    return msgspec.json.encode(value)


def json_size(value: Any) -> int:
    """Return the bytes of a value as compact UTF-8 JSON."""
    return len(json_bytes(value))


def assert_problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    """Check that an answer is a well-formed problem of this status and code; return the document."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), (
        answer.text
    )
    problem: dict[str, Any] = answer.json()
    assert (problem["status"], problem["code"]) == (status, code), problem
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert problem["title"] and problem["detail"] and problem["type"].endswith(code)
    for item in problem.get("errors", []):
        assert sorted(item) == ["code", "in", "message", "pointer"]
    return problem
