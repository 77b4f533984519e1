"""Large sessions without recording them: the rows that the ingest and sealing leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pyarrow as pa
import zstandard
from sqlmodel import SQLModel, insert

from benchmarks.events import event_items
from recorder import limits
from recorder.access.keys import create_key
from recorder.access.workspaces import create_workspace
from recorder.hashing import canonical_json, compute_hash_bucket
from recorder.ids import encode_ulid, new_id, reserve_ulid_values
from recorder.models.event import EventBatchRow
from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.recording.stored_events import COLUMNS
from recorder.runtime import Runtime
from recorder.storage.lake_schemas import LAYOUTS, LakeKind
from recorder.tenant import Tenant

WORKFLOW = "benchmark"
_START = datetime(2026, 5, 1, 8, tzinfo=UTC)
_DATE = "2026-05-01"
_ROWS = 20_000
_FRAME_MS = 500


@dataclass(frozen=True)
class BenchmarkWorkspace:
    """A workspace and its keys."""

    workspace_id: str
    keys: Sequence[str]


@dataclass(frozen=True)
class Batch:
    """Events of one request: what a client sent, and the ids that the service gave."""

    items: Sequence[dict[str, Any]]
    first_id: int

    def ids(self) -> list[str]:
        """Return the events' ids."""
        return [f"evt_{encode_ulid(self.first_id + n)}" for n in range(len(self.items))]


def new_tenant(runtime: Runtime, name: str, *, keys: int) -> BenchmarkWorkspace:
    """Create a workspace with so many keys."""
    secret = runtime.settings.secret
    with runtime.database.transaction(write=True) as db:
        first = create_workspace(db, name, region=runtime.settings.region, secret=secret, tier="unlimited")
        others = [
            create_key(db, first.workspace_id, label=f"{n}", scope="admin", mode="live", secret=secret).key
            for n in range(1, keys)
        ]
    return BenchmarkWorkspace(first.workspace_id, [first.key, *others])


def make_batches(events: int) -> list[Batch]:
    """Make the batches of a session with so many events."""
    size = limits.EVENTS_PER_BATCH
    items = event_items(events, seed=1)
    return [
        Batch(items[start : start + size], reserve_ulid_values(len(items[start : start + size])))
        for start in range(0, events, size)
    ]


def add_hot_session(
    runtime: Runtime, workspace: BenchmarkWorkspace, *, batches: Sequence[Batch] = (), frames: int = 0
) -> str:
    """Store a stopped session as the ingest leaves it; return its id."""
    session_id = new_id("ses")
    compressor = zstandard.ZstdCompressor(level=1)
    position = 1
    rows: list[dict[str, Any]] = []
    for batch in batches:
        rows.append(
            {
                "session_id": session_id,
                "first_position": position,
                "n": len(batch.items),
                "t_min": batch.items[0]["t_ms"],
                "t_max": batch.items[-1]["t_ms"],
                "first_id": batch.ids()[0],
                "received_ms": 0,
                "payload": compressor.compress(orjson.dumps({"events": batch.items})),
            }
        )
        position += len(batch.items)
    pictures = [{**_frame(n), "session_id": session_id, "position": position + n} for n in range(frames)]
    _add_session(runtime, workspace, session_id, batches, frames, is_hot=True)
    _insert(runtime, EventBatchRow, rows)
    _insert(runtime, FrameRow, pictures)
    return session_id


def add_sealed_session(
    runtime: Runtime,
    workspace: BenchmarkWorkspace,
    *,
    batches: Sequence[Batch] = (),
    frames: int = 0,
    number: int = 1,
) -> str:
    """Store a session as sealing and the sweep leave it; return its id.

    Args:
        number: of the batch in the lake; rising from session to session.
    """
    session_id = new_id("ses")
    columns = {
        "workflow": WORKFLOW,
        "date": _DATE,
        "bucket": compute_hash_bucket(session_id),
        "session_id": session_id,
    }
    rows = [
        {
            **columns,
            "event_id": event_id,
            "t_ms": item["t_ms"],
            "ts": _START + timedelta(milliseconds=item["t_ms"]),
            "type": item["type"],
            "frame_id": item.get("frame_id"),
            "is_action": False,
            "payload": canonical_json({k: v for k, v in item.items() if k not in COLUMNS}).decode(),
        }
        for batch in batches
        for item, event_id in zip(batch.items, batch.ids(), strict=True)
    ]
    pictures = [{**columns, **_sealed_frame(n)} for n in range(frames)]
    _append(runtime, workspace, "events", rows, number)
    _append(runtime, workspace, "frames", pictures, number)
    _add_session(runtime, workspace, session_id, batches, frames, is_hot=False)
    return session_id


def _append(
    runtime: Runtime, workspace: BenchmarkWorkspace, kind: LakeKind, rows: list[dict[str, Any]], number: int
) -> None:
    if not rows:
        return
    numbered = [{**row, "seq": n} for n, row in enumerate(rows)]
    table = pa.Table.from_pylist(numbered, schema=LAYOUTS[kind].schema)
    runtime.lake.append(kind, Tenant(workspace.workspace_id, "live"), table, lane="benchmark", number=number)


def _add_session(
    runtime: Runtime,
    workspace: BenchmarkWorkspace,
    session_id: str,
    batches: Sequence[Batch],
    frames: int,
    *,
    is_hot: bool,
) -> None:
    count = sum(len(batch.items) for batch in batches)
    with runtime.database.transaction(write=True) as db:
        db.add(
            SessionRow(
                id=session_id,
                workspace_id=workspace.workspace_id,
                mode="live",
                workflow=WORKFLOW,
                # Nothing seals or sweeps here; a sealed status would only let a stream end.
                status="stopped" if is_hot else "sealed",
                created_at=_START,
                started_at=_START,
                stopped_at=_START,
                event_count=count,
                frame_count=frames,
                last_position=count + frames,
                is_hot=is_hot,
                lake_date=None if is_hot else _DATE,
            )
        )


def _insert(runtime: Runtime, table: type[SQLModel], rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), _ROWS):
        with runtime.database.transaction(write=True) as db:
            db.execute(insert(table), rows[start : start + _ROWS])


def _frame(n: int) -> dict[str, Any]:
    return {
        "frame_id": f"frm_{n:026d}",
        "t_ms": n * _FRAME_MS,
        "content_type": "image/webp",
        "width": 1280,
        "height": 720,
        "bytes": 30_000,
        "sha256": f"{n:064x}",
        "object": "frames/benchmark.pack",
        "offset": n * 30_000,
        "length": 30_000,
        "url": f"https://erp.example.com/payables/{n % 97}",
    }


def _sealed_frame(n: int) -> dict[str, Any]:
    return {
        **_frame(n),
        "ts": _START + timedelta(milliseconds=n * _FRAME_MS),
        "state_tokens": ["button Approve", "textbox Amount"],
        "is_keyframe": n % 4 == 0,
        "n_events": 0,
        "has_action": False,
    }
