"""Listeners of commits: rows that a transaction changed, batches that the writer stored. Contract §3."""

import asyncio
from typing import Any

import pytest

from recorder.access.keys import Caller
from recorder.audit.log import Origin
from recorder.errors import RecorderError
from recorder.models.session import SessionCreate, SessionRow, TagCreate
from recorder.recording.event_batches import check_and_pack_event_batch
from recorder.recording.ingest import IngestBatch, IngestWriter
from recorder.recording.session_stops import stop_session
from recorder.recording.sessions import create_session, delete_session
from recorder.recording.tags import add_tag
from recorder.runtime import Runtime
from recorder.tenant import Tenant
from tests.support.factories import event, json_bytes
from tests.support.recorded_sessions import WORKSPACE

TENANT = Tenant(WORKSPACE, "live")


def make_session(runtime: Runtime) -> str:
    """Create a recording session."""
    with runtime.database.transaction(write=True) as db:
        return create_session(db, TENANT, SessionCreate(workflow="checkout", start=True)).id


def test_a_listener_gets_the_sessions_that_a_transaction_changed_once_it_is_committed(
    runtime: Runtime,
) -> None:
    stopped_id, tagged_id, deleted_id = (make_session(runtime) for _ in range(3))
    changes: list[set[str]] = []
    runtime.database.add_listener(SessionRow, lambda ids: changes.append(set(ids)))
    caller = Caller(TENANT, "key_a")
    with runtime.database.transaction(write=True) as db:
        stop_session(db, TENANT, stopped_id)
        add_tag(db, TENANT, tagged_id, TagCreate(name="done"))
        delete_session(db, Origin.system(WORKSPACE, "tests"), caller.tenant, deleted_id)
        created = create_session(db, TENANT, SessionCreate(workflow="checkout"))
        assert changes == []
    assert changes == [{stopped_id, tagged_id, deleted_id, created.id}]


def test_a_listener_gets_nothing_of_what_was_rolled_back_or_only_read(runtime: Runtime) -> None:
    session_id = make_session(runtime)
    changes: list[set[str]] = []
    runtime.database.add_listener(SessionRow, changes.append)
    with pytest.raises(KeyError), runtime.database.transaction(write=True) as db:
        stop_session(db, TENANT, session_id)
        raise KeyError
    with runtime.database.transaction(write=False) as db:
        db.get_one(SessionRow, session_id)
    with runtime.database.transaction(write=True) as db:
        db.get_one(SessionRow, session_id)
    assert changes == []


def test_the_writer_reports_the_batches_that_it_stored_and_no_others(runtime: Runtime) -> None:
    session_id = make_session(runtime)
    reported: list[Any] = []

    def report(stored: list[IngestBatch]) -> None:
        # The rows are committed: another transaction reads them.
        with runtime.database.transaction(write=False) as db:
            last = db.get_one(SessionRow, session_id).last_position
        reported.extend((batch.session_id, getattr(batch, "first_position", None), last) for batch in stored)

    async def submit(*batches: Any) -> list[Any]:
        return await asyncio.gather(*map(writer.submit, batches), return_exceptions=True)

    def batch(to: str, key: str | None = None) -> Any:
        body = json_bytes({"events": [event(0), event(1)]})
        caller = Caller(TENANT, "key_a")
        return check_and_pack_event_batch(caller, to, body, content_type="application/json", batch_key=key)

    writer = IngestWriter(runtime.database, on_commit=report)
    asyncio.run(submit(batch(session_id, "once")))
    refused, replayed = asyncio.run(submit(batch("ses_missing"), batch(session_id, "once")))
    asyncio.run(submit(batch(session_id)))
    writer.close()
    assert isinstance(refused, RecorderError) and isinstance(replayed, bytes)
    assert reported == [(session_id, 3, 4), (session_id, 5, 6)]
