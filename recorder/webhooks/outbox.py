"""The outbox: events of spec §6.1, written in the transaction of the change they report."""

from typing import Any

import orjson
from sqlmodel import Session as DbSession

from recorder import clock
from recorder.ids import new_id
from recorder.models.operations import OutboxRow
from recorder.request_context import current_request_id
from recorder.tenant import Tenant


def add_event(
    db: DbSession, *, tenant: Tenant, type: str, subject_id: str, data: dict[str, Any]
) -> OutboxRow:
    """Queue an event for every webhook that subscribed to its type; the request at work is noted with it.

    Args:
        type: one of spec §6.1, such as `session.sealed`.
        subject_id: id of the session, export, … it is about.
        data: the payload's `data`, in JSON types, as contract §6 gives it.
    """
    row = make_event(tenant=tenant, type=type, subject_id=subject_id, data=data)
    db.add(row)
    return row


def make_event(*, tenant: Tenant, type: str, subject_id: str, data: dict[str, Any]) -> OutboxRow:
    """The row that `add_event` adds; for the ingest writer, which inserts it by itself."""
    return OutboxRow(
        id=new_id("evt"),
        workspace_id=tenant.workspace_id,
        mode=tenant.mode,
        type=type,
        subject_id=subject_id,
        data=data,
        created_at=clock.now(),
        request_id=current_request_id(),
    )


def encode_event(row: OutboxRow) -> bytes:
    """What receivers are sent: id, type, time and data of an event as JSON. Spec §6.2."""
    return orjson.dumps(
        {"id": row.id, "type": row.type, "created_at": clock.to_iso(row.created_at), "data": row.data}
    )
