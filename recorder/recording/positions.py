"""Positions in a session: one counter that every item draws from, checked and moved in one statement."""

from recorder.errors import InvalidState, NotFound
from recorder.recording.cursor import Cursor

_VISIBLE = "workspace_id = ? AND mode = ? AND id = ? AND deleted_at IS NULL"
_RESERVE = (
    "UPDATE sessions SET last_position = last_position + ?, event_count = event_count + ?, "  # noqa: S608
    "frame_count = frame_count + ?, max_t_ms = CASE WHEN max_t_ms < ? THEN ? ELSE max_t_ms END "
    f"WHERE {_VISIBLE} AND status = 'recording' RETURNING last_position, event_count, frame_count"
)
_STATUS = f"SELECT status FROM sessions WHERE {_VISIBLE}"  # noqa: S608
# A no-op UPDATE takes the row lock on PostgreSQL and costs SQLite, which holds its one lock, next to nothing.
_LOCK = f"UPDATE sessions SET id = id WHERE {_VISIBLE} RETURNING id"  # noqa: S608


def reserve_positions(
    cursor: Cursor, session: tuple[str, str, str], *, events: int, frames: int, max_t_ms: int
) -> tuple[int, int, int]:
    """Check the session's state and draw positions for new items, in one statement.

    Args:
        session: workspace, mode and session id.

    Returns:
        The first position, and the session's event and frame counts with these items.

    Raises:
        NotFound: if the caller has no such session.
        InvalidState: if it does not record.
    """
    taken = events + frames
    rows = cursor.all(_RESERVE, (taken, events, frames, max_t_ms, max_t_ms, *session))
    if rows:
        last, event_count, frame_count = rows[0]
        return last - taken + 1, event_count, frame_count
    rows = cursor.all(_STATUS, session)
    if not rows:
        raise NotFound("session")
    raise InvalidState(rows[0][0], needed="session must be recording to take events and frames")


def lock_session(cursor: Cursor, session: tuple[str, str, str]) -> None:
    """Hold the session's row, so that ids can be looked up before positions are drawn.

    Raises:
        NotFound: if the caller has no such session.
    """
    if not cursor.all(_LOCK, session):
        raise NotFound("session")
