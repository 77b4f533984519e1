"""The outbox: events of spec §6.1, written in the transaction of the change they report."""

from typing import Any

from sqlmodel import Session as DbSession

from recorder import clock
from recorder.ids import new_id
from recorder.models.outbox import OutboxRow


def add_event(
    db: DbSession, *, workspace_id: str, mode: str, type: str, subject_id: str, data: dict[str, Any]
) -> None:
    """Queue an event for every webhook that subscribed to its type.

    Args:
        type: one of spec §6.1, such as `session.sealed`.
        subject_id: id of the session, export, … it is about.
        data: the payload's `data`, in JSON types, as contract §6 gives it.
    """
    db.add(
        OutboxRow(
            id=new_id("evt"),
            workspace_id=workspace_id,
            mode=mode,
            type=type,
            subject_id=subject_id,
            data=data,
            created_at=clock.now(),
        )
    )
