"""Sealed sessions made without recording them: the SQL rows, lake rows and pictures that sealing leaves."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recorder import clock
from recorder.data_folder import store_secret
from recorder.hashing import compute_hash_bucket
from recorder.ids import new_id
from recorder.models.session import SessionMetadataRow, SessionRow, TagRow
from recorder.models.workflow import WorkflowRow
from recorder.models.workspace import WorkspaceRow
from recorder.row_digests import compute_events_digest
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.storage.blobs import Blobs
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import LAYOUTS, LakeKind
from recorder.storage.store_regions import check_store_regions
from recorder.tenant import Tenant
from tests.support.databases import create_database, create_file

WORKSPACE = "wsp_01k0000000000000000000000a"
START = datetime(2026, 5, 1, 8, tzinfo=UTC)
# One pixel; what matters is that the bytes differ from frame to frame, which a comment takes care of.
_PNG = b"\x89PNG\r\n\x1a\n"


def make_settings(folder: Path, **chosen: Any) -> Settings:
    """Return settings that keep everything below a folder, and create a database with our tables there."""
    (folder / "local").mkdir(parents=True, exist_ok=True)
    # starlette's test client calls the service `testserver`.
    chosen_here = {
        "RECORDER_LOCAL_EXPORT_ROOT": str(folder / "local"),
        "RECORDER_ALLOWED_HOSTS": "testserver",
    }
    if "database_url" in chosen:
        # Deployments of several tests on one database have one secret, as processes of several machines.
        store_secret(folder, hashlib.sha256(str(chosen["database_url"]).encode()).hexdigest().encode())
    settings = Settings.from_env(chosen_here, data_dir=folder)
    if "database_url" not in chosen:
        create_file(folder)
    return replace(settings, **chosen)


def make_runtime(folder: Path, **chosen: Any) -> Runtime:
    """Return a deployment of its own below a folder."""
    return Runtime.open(accept_stores(make_settings(folder, **chosen)))


def accept_stores(settings: Settings) -> Settings:
    """Mark stores of a test whose database, shared with other tests, may list content of theirs."""
    check_store_regions(settings, Blobs(settings.blob_url), Lake(settings.lake_url), marks_new=True)
    return settings


@pytest.fixture(scope="module")
def runtime(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """Yield a deployment on either engine; the tests of a module share it."""
    opened = make_runtime(tmp_path_factory.mktemp("deployment"), database_url=database_url)
    yield opened
    opened.close()


def open_on_either_engine(
    request: pytest.FixtureRequest, folder: Path, *, tier: str | None = None, **chosen: Any
) -> Iterator[Runtime]:
    """Open a deployment on the engine that the fixture's parameter names, and close it after the test.

    Args:
        request: the fixture's; its parameter is `sqlite`, the default, or `postgresql`.
        folder: folder of the deployment.
        tier: with a tier, the deployment has a workspace of it.
        chosen: settings, as `make_settings` takes them.
    """
    if getattr(request, "param", "sqlite") == "postgresql":
        chosen["database_url"] = create_database(request.getfixturevalue("postgres"))
    opened = make_runtime(folder, **chosen)
    if tier is not None:
        with opened.database.transaction(write=True) as db:
            db.add(WorkspaceRow(id=WORKSPACE, name="acme", region="us", tier=tier, created_at=START))
    yield opened
    opened.close()


@dataclass(kw_only=True)
class Recording:
    """A session as a test describes it; each event is `(t_ms, type)`, each frame a `t_ms`."""

    workflow: str = "checkout"
    events: list[tuple[int, str]] = field(
        default_factory=lambda: [(0, "click"), (500, "scroll"), (900, "input")]
    )
    frames: list[int] = field(default_factory=list)
    outcome: str | None = "success"
    actor_kind: str | None = "human"
    started_at: datetime = START
    sealed_at: datetime = START + timedelta(minutes=10)
    duration_ms: int = 1_000
    is_import: bool = False
    tags: list[str] = field(default_factory=list)
    replayability: float | None = None
    #: Letters that each event's payload has more than the rest of it needs.
    padding: int = 0
    session_id: str = field(default_factory=lambda: new_id("ses"))


def add_workspace(runtime: Runtime) -> None:
    """Add the workspace of sealed sessions, with the default settings."""
    with runtime.database.transaction(write=True) as db:
        db.add(WorkspaceRow(id=WORKSPACE, name="acme", region="us", created_at=START))


def seal(
    runtime: Runtime, recordings: list[Recording], *, workspace_id: str = WORKSPACE, mode: str = "live"
) -> list[str]:
    """Put the sessions where sealing would have put them, as one batch; returns their ids."""
    number = (runtime.lake.version("sessions", Tenant(workspace_id, mode)) or 0) + 1
    tables: dict[LakeKind, list[dict[str, Any]]] = {"events": [], "frames": [], "sessions": []}
    for seal_seq, recording in enumerate(recordings):
        _add_lake_rows(runtime, recording, tables, workspace_id, seal_seq)
    for kind, rows in tables.items():
        table = pa.Table.from_pylist(rows, LAYOUTS[kind].schema)
        runtime.lake.append(kind, Tenant(workspace_id, mode), table, lane="test", number=number)
    with runtime.database.transaction(write=True) as db:
        for recording in recordings:
            _add_sql_rows(db, recording, Tenant(workspace_id, mode))
    return [recording.session_id for recording in recordings]


def delete(runtime: Runtime, session_id: str) -> None:
    """Delete a session softly."""
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(SessionRow, session_id)
        row.deleted_at = clock.now()
        db.add(row)


def picture(session_id: str, number: int) -> bytes:
    """Return the bytes that replace a frame's picture."""
    return _PNG + f"{session_id} {number}".encode() * 20


def _add_lake_rows(
    runtime: Runtime,
    recording: Recording,
    tables: dict[LakeKind, list[dict[str, Any]]],
    workspace_id: str,
    seal_seq: int,
) -> None:
    session_id = recording.session_id
    columns = {
        "workflow": recording.workflow,
        "date": recording.sealed_at.strftime("%Y-%m-%d"),
        "bucket": compute_hash_bucket(session_id),
        "session_id": session_id,
    }
    frames = _frame_rows(runtime, recording, workspace_id)
    events = _event_rows(recording, frames)
    tables["frames"] += [columns | frame for frame in frames]
    tables["events"] += [columns | event for event in events]
    tables["sessions"].append(
        columns
        | {
            "seal_seq": seal_seq,
            "started_at": recording.started_at,
            "duration_ms": recording.duration_ms,
            "event_count": len(events),
            "action_count": sum(event["is_action"] for event in events),
            "frame_count": len(frames),
            "image_bytes": sum(frame["bytes"] for frame in frames),
            "rows_sha256": _digest(events),
            "replayability": None,
            "payload_bytes": sum(len(event["payload"].encode()) for event in events),
        }
    )


def _frame_rows(runtime: Runtime, recording: Recording, workspace_id: str) -> list[dict[str, Any]]:
    key = f"frames/{workspace_id}/{recording.session_id}/batch.pack"
    pack, rows = b"", []
    for seq, t_ms in enumerate(sorted(recording.frames)):
        data = picture(recording.session_id, seq)
        rows.append(
            {
                "frame_id": new_id("frm"),
                "seq": seq,
                "t_ms": t_ms,
                "ts": recording.started_at + timedelta(milliseconds=t_ms),
                "width": 1280,
                "height": 720,
                "content_type": "image/png",
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "dhash": None if seq % 3 == 1 else -seq,
                "state_key": None if seq % 2 else "state",
                "state_tokens": [],
                "is_keyframe": seq % 4 == 0,
                "n_events": 0,
                "has_action": False,
                "object": key,
                "offset": len(pack),
                "length": len(data),
            }
        )
        pack += data
    if rows:
        runtime.blobs.put(key, pack)
    return rows


def _event_rows(recording: Recording, frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for seq, (t_ms, kind) in enumerate(sorted(recording.events)):
        frame = next((frame for frame in reversed(frames) if frame["t_ms"] <= t_ms), None)
        is_action = kind in ("click", "input")
        if frame is not None:
            frame["n_events"] += 1
            frame["has_action"] = frame["has_action"] or is_action
        rows.append(
            {
                "event_id": new_id("evt"),
                "seq": seq,
                "t_ms": t_ms,
                "ts": recording.started_at + timedelta(milliseconds=t_ms),
                "type": kind,
                "frame_id": frame["frame_id"] if frame and seq % 2 == 0 else None,
                "frame_seq": frame["seq"] if frame else None,
                "is_action": is_action,
                "payload": f'{{"url":"https://shop.example/{seq}{"x" * recording.padding}"}}',
            }
        )
    return rows


def _digest(events: list[dict[str, Any]]) -> str:
    return compute_events_digest(
        (
            event["event_id"],
            event["t_ms"],
            clock.to_ms(event["ts"]) * 1000,
            event["type"],
            event["frame_id"],
            event["payload"],
        )
        for event in events
    )


def _add_sql_rows(db: Any, recording: Recording, tenant: Tenant) -> None:
    if db.get(WorkflowRow, (tenant.workspace_id, tenant.mode, recording.workflow)) is None:
        db.add(
            WorkflowRow(
                workspace_id=tenant.workspace_id,
                mode=tenant.mode,
                workflow=recording.workflow,
                created_at=recording.started_at,
                updated_at=recording.started_at,
            )
        )
    db.add(
        SessionRow(
            id=recording.session_id,
            workspace_id=tenant.workspace_id,
            mode=tenant.mode,
            workflow=recording.workflow,
            status="sealed",
            actor_id="someone" if recording.actor_kind else None,
            actor_kind=recording.actor_kind,
            created_at=recording.started_at,
            started_at=recording.started_at,
            stopped_at=recording.started_at + timedelta(milliseconds=recording.duration_ms),
            sealed_at=recording.sealed_at,
            is_import=recording.is_import,
            duration_ms=recording.duration_ms,
            event_count=len(recording.events),
            frame_count=len(recording.frames),
            outcome=recording.outcome,
            replayability=recording.replayability,
            replayability_at=recording.sealed_at,
            lake_date=recording.sealed_at.strftime("%Y-%m-%d"),
            is_hot=False,
        )
    )
    db.add(SessionMetadataRow(session_id=recording.session_id, metadata_={}))
    for name in recording.tags:
        db.add(
            TagRow(
                id=new_id("tag"),
                session_id=recording.session_id,
                workspace_id=tenant.workspace_id,
                mode=tenant.mode,
                name=name,
                t_ms=0,
                position=1,
                created_at=recording.started_at,
            )
        )
