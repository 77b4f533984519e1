"""Sessions recorded through the operations, without HTTP, and what sealing left of them."""

import asyncio
import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import text
from sqlmodel import insert, select

from recorder.access.keys import Caller
from recorder.audit.log import Origin
from recorder.ids import new_id
from recorder.models.memory import SessionPathRow
from recorder.models.operations import OutboxRow
from recorder.models.session import SessionCreate, SessionRow, TagCreate
from recorder.recording.event_batches import check_and_pack_event_batch
from recorder.recording.frame_validation import validate_frames_json
from recorder.recording.frames import FrameUpload
from recorder.recording.ingest import IngestWriter
from recorder.recording.session_stops import stop_session
from recorder.recording.sessions import create_session, delete_session
from recorder.recording.tags import add_tag
from recorder.runtime import Runtime
from recorder.tenant import Tenant

WORKSPACE = "wsp_01k0000000000000000000000a"


@dataclass(frozen=True)
class Desk:
    """Records sessions of one workspace and mode."""

    runtime: Runtime
    writer: IngestWriter
    caller: Caller

    def record(
        self,
        *,
        events: Sequence[dict[str, Any]] = ({"t_ms": 0, "type": "click"}, {"t_ms": 5, "type": "fill"}),
        frames: Sequence[dict[str, Any]] = (),
        tags: Sequence[str] = (),
        is_stopped: bool = True,
        **body: Any,
    ) -> str:
        """Record a session with these items, and stop it; return its id."""
        tenant = self.caller.tenant
        wanted = SessionCreate.model_validate({"workflow": "checkout", "start": True, **body})
        with self.runtime.database.transaction(write=True) as db:
            session_id = create_session(db, tenant, wanted).id
        if events:
            self.add_events(session_id, *events)
        if frames:
            self.add_frames(session_id, *frames)
        with self.runtime.database.transaction(write=True) as db:
            for name in tags:
                add_tag(db, tenant, session_id, TagCreate(name=name))
            if is_stopped:
                stop_session(db, tenant, session_id)
        return session_id

    def add_events(self, session_id: str, *items: dict[str, Any]) -> None:
        """Send one batch of events."""
        body = orjson.dumps({"events": items})
        batch = check_and_pack_event_batch(
            self.caller, session_id, body, content_type="application/json", batch_key=None
        )
        asyncio.run(self.writer.submit(batch))

    def add_frames(self, session_id: str, *items: dict[str, Any]) -> None:
        """Send one batch of frames."""
        read, parts = validate_frames_json(orjson.dumps({"frames": items}))
        upload = FrameUpload(self.caller, session_id, read, parts, None)
        checked = upload.check(self.runtime.database)
        assert not isinstance(checked, bytes)
        asyncio.run(self.writer.submit(checked.store(self.runtime.blobs, {})))


@contextmanager
def open_desk(runtime: Runtime, *, workspace_id: str = WORKSPACE, mode: Any = "live") -> Iterator[Desk]:
    """Yield a desk with a writer of its own."""
    writer = IngestWriter(runtime.database)
    try:
        yield Desk(runtime, writer, Caller(Tenant(workspace_id, mode), new_id("key")))
    finally:
        writer.close()


def png_item(t_ms: int, data: bytes, **members: Any) -> dict[str, Any]:
    """Return a frame item that carries these bytes."""
    return {"t_ms": t_ms, "content_type": "image/png", "data": base64.b64encode(data).decode(), **members}


def session_row(runtime: Runtime, session_id: str) -> SessionRow:
    """Return the row of a session."""
    with runtime.database.transaction(write=False) as db:
        return db.get_one(SessionRow, session_id)


def delete(runtime: Runtime, session_id: str) -> None:
    """Delete a live session of the workspace softly."""
    with runtime.database.transaction(write=True) as db:
        delete_session(db, Origin(WORKSPACE, "key", new_id("key")), Tenant(WORKSPACE, "live"), session_id)


def outbox_types(runtime: Runtime, session_id: str) -> list[str]:
    """Return the types of a session's outbox events, in their order."""
    with runtime.database.transaction(write=False) as db:
        statement = select(OutboxRow.type).where(OutboxRow.subject_id == session_id)
        return list(db.exec(statement.order_by(OutboxRow.id)))


def execute(runtime: Runtime, statement: str, **values: Any) -> None:
    """Change rows directly in SQL: make things old, let a lease expire."""
    with runtime.database.transaction(write=True) as db:
        db.connection().execute(text(statement), values)


def copy_session(runtime: Runtime, session_id: str, count: int, **changed: Any) -> list[str]:
    """Add so many rows that equal a session's but for their ids; return the ids, in order."""
    values = session_row(runtime, session_id).model_dump() | changed
    ids = [new_id("ses") for _ in range(count)]
    with runtime.database.transaction(write=True) as db:
        db.connection().execute(insert(SessionRow), [values | {"id": each} for each in ids])
    return ids


def let_lease_run_out(runtime: Runtime) -> None:
    """Expire the leases, as half a minute after a kill does."""
    execute(runtime, "UPDATE leases SET expires_ms = 0")


def assert_sealed_exactly_once(runtime: Runtime, session_ids: Sequence[str]) -> None:
    """Check that every session is sealed, and in the lake, the graph and the outbox once."""
    rows = [session_row(runtime, session_id) for session_id in session_ids]
    assert {row.status for row in rows} == {"sealed"}
    for kind, expected in (
        ("events", {row.id: row.event_count for row in rows}),
        ("frames", {row.id: row.frame_count for row in rows}),
        ("sessions", {row.id: 1 for row in rows}),
    ):
        assert _lake_counts(runtime, kind, rows) == {key: n for key, n in expected.items() if n}, kind
    events = _lake(runtime, "events", rows)
    assert len(set(events)) == len(events)
    with runtime.database.transaction(write=False) as db:
        paths = Counter(db.exec(select(SessionPathRow.session_id)))
    assert {paths[row.id] for row in rows} == {1}
    assert {outbox_types(runtime, row.id).count("session.sealed") for row in rows} == {1}
    numbers = [(row.workspace_id, row.mode, row.workflow, row.seal_seq or 0) for row in rows]
    assert len(set(numbers)) == len(numbers) and min(number[-1] for number in numbers) >= 1


def _lake_counts(runtime: Runtime, kind: Any, rows: list[SessionRow]) -> dict[str, int]:
    result: Counter[str] = Counter()
    for workspace_id, mode in {(row.workspace_id, row.mode) for row in rows}:
        table = runtime.lake.scan(kind, Tenant(workspace_id, mode)).select("session_id").collect()
        result.update(table["session_id"].to_list())
    return {row.id: result[row.id] for row in rows if result[row.id]}


def _lake(runtime: Runtime, kind: Any, rows: list[SessionRow]) -> list[tuple[str, int]]:
    results: list[tuple[str, int]] = []
    for workspace_id, mode in {(row.workspace_id, row.mode) for row in rows}:
        results += (
            runtime.lake.scan(kind, Tenant(workspace_id, mode)).select("session_id", "seq").collect().rows()
        )
    return results
