"""A request's id goes where its consequences go: the outbox and the queue of exports. Contract §1, §9."""

from sqlmodel import select

from recorder.models.export import ExportRow
from recorder.models.operations import OutboxRow
from tests.support.factories import Caller, event


def told_by(caller: Caller, subject_id: str) -> list[tuple[str, str | None]]:
    """Return the type and request of the outbox rows about a subject, oldest first."""
    with caller.service.runtime.database.transaction(write=False) as db:
        rows = db.exec(select(OutboxRow).where(OutboxRow.subject_id == subject_id).order_by(OutboxRow.id))
        return [(row.type, row.request_id) for row in rows]


def test_an_event_names_the_request_that_brought_it_about(caller: Caller) -> None:
    created = caller.post("/v1/sessions", {"workflow": "checkout", "start": True})
    session_id = created.json()["id"]
    caller.add_events(session_id, event(1))
    stopped = caller.post("/v1/sessions:batch_stop", {"ids": [session_id]})
    first, last = created.headers["x-request-id"], stopped.headers["x-request-id"]
    assert first != last
    assert told_by(caller, session_id) == [
        ("session.created", first),
        ("session.started", first),
        ("session.stopped", last),
    ]


def test_an_export_names_the_request_that_asked_for_it(caller: Caller) -> None:
    caller.make_session()
    body = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    answer = caller.post("/v1/exports", body)
    with caller.service.runtime.database.transaction(write=False) as db:
        row = db.get_one(ExportRow, answer.json()["id"])
    assert row.request_id == answer.headers["x-request-id"]
    assert told_by(caller, row.id) == [("export.queued", row.request_id)]
