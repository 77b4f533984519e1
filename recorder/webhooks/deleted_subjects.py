"""Events and kept answers about deleted sessions, which are shown no more. Contract §2."""

from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlmodel import col

from recorder.models.operations import OutboxRow
from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow
from recorder.models.session import SessionRow


def make_deleted_resource_condition(resource: Any) -> ColumnElement[bool]:
    """Return the condition that a resource is a deleted session, a replay or recovery of one, or their event.

    Args:
        resource: column with the id of the resource.
    """
    event = select(col(OutboxRow.id)).where(col(OutboxRow.id) == resource, make_deleted_subject_condition())
    is_event = event.correlate(resource.table).scalar_subquery().is_not(None)
    return or_(make_deleted_subject_condition(resource), is_event)


def make_deleted_subject_condition(subject: Any = OutboxRow.subject_id) -> ColumnElement[bool]:
    """Return the condition that a subject is a deleted session, or a replay or recovery of one.

    Each part reads a few rows by their keys. For a condition with `EXISTS` a planner may read all deleted
    sessions first.

    Args:
        subject: column with the id of the subject; by default that of an event.
    """
    deleted_at = col(SessionRow.deleted_at)
    parts: list[Any] = [select(deleted_at).where(col(SessionRow.id) == subject)]
    for table, other_session in (
        (ReplayRow, ReplayRow.against_session_id),
        (RecoveryRow, RecoveryRow.point_session_id),
    ):
        of_row = col(SessionRow.id).in_([col(table.session_id), col(other_session)])
        sessions = select(func.max(deleted_at)).select_from(table).join(SessionRow, of_row)
        parts.append(sessions.where(col(table.id) == subject))
    return or_(*(part.correlate(subject.table).scalar_subquery().is_not(None) for part in parts))
