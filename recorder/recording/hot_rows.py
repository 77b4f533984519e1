"""Rows of sessions in SQL, and their deletion in portions that no other writer waits for. Contract §2."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select, tuple_

from recorder.models.event import BatchKeyRow, EventBatchRow, EventKeyRow
from recorder.models.frame import FrameRow


class RowsOfSessions(NamedTuple):
    """Table with rows of sessions.

    Attributes:
        table: the table.
        key: the column that distinguishes the rows of a session.
        most: rows that one transaction deletes: on SQLite no other request can write while it lasts.
        payload: the column whose values are large, if there is one.
        most_bytes: bytes of payloads that one transaction deletes, but always one row: SQLite overwrites
            what it deletes, 465 MB of one session in 11 s.
    """

    table: Any
    key: Any
    most: int
    payload: Any = None
    most_bytes: int = 8 * 1024 * 1024


#: Rows that the lake replaces once a session is sealed.
HOT_ROWS = (
    RowsOfSessions(EventBatchRow, EventBatchRow.first_position, 200, EventBatchRow.payload),
    RowsOfSessions(EventKeyRow, EventKeyRow.event_id, 2_000),
    RowsOfSessions(FrameRow, FrameRow.frame_id, 1_000),
    RowsOfSessions(BatchKeyRow, BatchKeyRow.batch_key, 500),
)


def delete_some_hot_rows(db: DbSession, session_ids: Sequence[str], tables: Sequence[RowsOfSessions]) -> bool:
    """Delete rows of sessions, a bounded number of each table; return whether some may be left."""
    has_more = False
    for rows in tables:
        session_id = col(rows.table.session_id)
        of_sessions = session_id.in_(session_ids)
        chosen: Any = select(session_id, rows.key).where(of_sessions).limit(rows.most)
        if rows.payload is not None:
            chosen, are_others_left = _choose_hot_rows(db, rows, of_sessions)
            has_more = has_more or are_others_left
        # The second condition repeats the first one, so that no planner reads the whole table.
        wanted = (of_sessions, tuple_(session_id, rows.key).in_(chosen))
        deleted = db.connection().execute(delete(rows.table).where(*wanted)).rowcount
        has_more = has_more or deleted >= rows.most
    return has_more


def _choose_hot_rows(
    db: DbSession, rows: RowsOfSessions, of_sessions: Any
) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the keys of rows whose payloads are small enough together, and whether there are other rows."""
    columns = (rows.table.session_id, rows.key, func.length(rows.payload))
    first = db.connection().execute(select(*columns).where(of_sessions).limit(rows.most)).all()
    fitting = sum(total <= rows.most_bytes for total in accumulate(size for _, _, size in first))
    chosen = [(session_id, key) for session_id, key, _ in first[: max(1, fitting)]]
    return chosen, len(chosen) < len(first)
