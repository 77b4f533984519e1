"""Failures of sessions: the tag or event that marks one, and the sessions that failed alike. Contract §8."""

from typing import NamedTuple

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import NotFound, ValidationFailed
from recorder.memory.queries.columns import NOWHERE, GraphColumns, make_session_lookup
from recorder.memory_service.recovery_points import read_last_recovery_tag_times
from recorder.models.session import SessionRow, TagRow
from recorder.recording.outcome_detection import read_outcome_detection_rules
from recorder.storage.conditions import in_tenant
from recorder.tenant import GraphScope

_NO_FAILURE = "The session carries none of its workflow's error tags and no error event; "
#: What the request can name instead, by the member that asks for the failure.
_ADVICE = {
    "/session_id": "name the tag of its failure with failure_tag, or choose a session that failed.",
    "/anchor/auto": "choose another anchor, or a session that failed.",
}


class SessionFailure(NamedTuple):
    """The last failure of a session: a tag, or an error event without one."""

    tag: str | None
    t_ms: int


def find_session_failure(
    db: DbSession, session: SessionRow, failure_tag: str | None, *, pointer: str
) -> SessionFailure:
    """Return the failure of a session: the last tag of that name, else of an error, else its error event.

    Args:
        db: a transaction.
        session: the session.
        failure_tag: name of the tag; None for any of the workflow's error tags.
        pointer: member of the body that asks for it.

    Raises:
        NotFound: if the session lacks the named tag.
        ValidationFailed: if no tag is named and the session did not fail.
    """
    tag = TagRow
    names = read_outcome_detection_rules(db, session).error_tags if failure_tag is None else {failure_tag}
    statement = select(tag.name, tag.t_ms).where(tag.session_id == session.id, col(tag.name).in_(names))
    last = db.exec(statement.order_by(col(tag.t_ms).desc(), col(tag.id).desc()).limit(1)).first()
    if last is not None:
        return SessionFailure(*last)
    if failure_tag is not None:
        raise NotFound("tag", "The session has no tag of the name in failure_tag.")
    mark = session.event_mark
    if mark is None or mark["outcome"] != "error":
        raise ValidationFailed.of(pointer, "no_failure", message=_NO_FAILURE + _ADVICE[pointer])
    return SessionFailure(None, mark["t_ms"])


def read_similar_failures(
    db: DbSession, scope: GraphScope, columns: GraphColumns, session: SessionRow, failure: SessionFailure
) -> dict[int, int]:
    """Return when sessions of a graph failed in the same way, by row: by the tag, or by an error event."""
    if failure.tag is not None:
        failed_ms = read_last_recovery_tag_times(db, scope, columns, frozenset({failure.tag}))
    else:
        table = SessionRow
        statement = select(table.id, table.event_mark).where(
            *in_tenant(table, scope.tenant),
            table.workflow == scope.workflow,
            col(table.event_mark).is_not(None),
            col(table.deleted_at).is_(None),
        )
        marks = [(session_id, mark) for session_id, mark in db.exec(statement) if mark is not None]
        marks = [(session_id, mark) for session_id, mark in marks if mark["outcome"] == "error"]
        rows = make_session_lookup(columns).find([session_id for session_id, _ in marks]).tolist()
        failed_ms = {row: mark["t_ms"] for row, (_, mark) in zip(rows, marks, strict=True) if row != NOWHERE}
    (failed_row,) = make_session_lookup(columns).find([session.id]).tolist()
    return {**failed_ms, failed_row: failure.t_ms}
