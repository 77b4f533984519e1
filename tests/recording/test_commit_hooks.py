"""Who is told of a commit: of rows a transaction wrote, of batches the writer stored. Contract §3."""

import asyncio
from typing import Any

import pytest

from recorder.access.keys import Caller
from recorder.errors import RecorderError
from recorder.models.session import SessionCreate, SessionRow
from recorder.recording.events import read_event_batch
from recorder.recording.ingest import Batch, IngestWriter
from recorder.recording.sessions import create_session
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.factories import event, json_bytes
from tests.support.recorded_sessions import WORKSPACE


def make_session(runtime: Runtime) -> str:
    """A recording session."""
    with runtime.database.transaction(write=True) as db:
        return create_session(
            db, Tenant(WORKSPACE, "live"), SessionCreate(workflow="checkout", start=True)
        ).id


def test_a_transaction_tells_which_sessions_it_changed_once_it_is_committed(runtime: Runtime) -> None:
    session_id, told = make_session(runtime), []
    runtime.database.after_commit(SessionRow, lambda ids: told.append(set(ids)))
    with runtime.database.transaction(write=True) as db:
        row = db.get_one(SessionRow, session_id)
        row.last_position += 1
        db.flush()
        other = create_session(db, Tenant(WORKSPACE, "live"), SessionCreate(workflow="checkout"))
        assert told == []
    assert told == [{session_id, other.id}]


def test_what_was_rolled_back_or_only_read_is_not_told(runtime: Runtime) -> None:
    session_id, told = make_session(runtime), []
    runtime.database.after_commit(SessionRow, told.append)
    with pytest.raises(KeyError), runtime.database.transaction(write=True) as db:
        db.get_one(SessionRow, session_id).last_position += 1
        db.flush()
        raise KeyError
    with runtime.database.transaction(write=False) as db:
        db.get_one(SessionRow, session_id)
    with runtime.database.transaction(write=True) as db:
        db.get_one(SessionRow, session_id)
    assert told == []


def test_the_writer_tells_of_what_it_stored_and_of_nothing_else(runtime: Runtime) -> None:
    session_id, told = make_session(runtime), []

    def tell(stored: list[Batch]) -> None:
        # By then anybody can read the rows.
        with runtime.database.transaction(write=False) as db:
            last = db.get_one(SessionRow, session_id).last_position
        told.extend((batch.session_id, getattr(batch, "first_position", None), last) for batch in stored)

    async def submit(*batches: Any) -> list[Any]:
        return await asyncio.gather(*map(writer.submit, batches), return_exceptions=True)

    def batch(to: str, key: str | None = None) -> Any:
        body = json_bytes({"events": [event(0), event(1)]})
        caller = Caller(Tenant(WORKSPACE, "live"), "key_a")
        return read_event_batch(caller, to, body, content_type="application/json", batch_key=key)

    writer = IngestWriter(runtime.database, on_commit=tell)
    asyncio.run(submit(batch(session_id, "once")))
    refused, replayed = asyncio.run(submit(batch("ses_missing"), batch(session_id, "once")))
    asyncio.run(submit(batch(session_id)))
    writer.close()
    assert isinstance(refused, RecorderError) and isinstance(replayed, bytes)
    assert told == [(session_id, 3, 4), (session_id, 5, 6)]
