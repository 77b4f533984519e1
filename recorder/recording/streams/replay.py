"""A stream from its start, long after sealing: events and frames lie in the lake by then. Contract §3.

The lake keeps the order `(t_ms, id)`, not the one in which items came. Tags and status changes keep their
positions; events and frames take the others, in the lake's order.
"""

from collections.abc import Iterator
from itertools import count

from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder.models.session import SessionRow, SessionStatusRow
from recorder.models.tag import TagRow
from recorder.recording import reads
from recorder.recording.streams.messages import Message, Segment, cut, message
from recorder.recording.streams.reading import status_message, tag_message
from recorder.storage.lake import Lake


def replay_swept(db: DbSession, lake: Lake, row: SessionRow) -> list[Segment]:
    """All messages of a session whose hot rows are gone."""
    kept = _kept_messages(db, row.id)
    taken = {one[0] for one in kept}
    free = (position for position in count(1) if position not in taken)
    items = zip(free, _items(db, lake, row), strict=False)
    moved = [message(position, name, data) for position, (name, data) in items]
    return list(cut(sorted([*kept, *moved])))


def _kept_messages(db: DbSession, session_id: str) -> list[Message]:
    tags = db.exec(select(TagRow).where(TagRow.session_id == session_id))
    statuses = db.exec(select(SessionStatusRow).where(SessionStatusRow.session_id == session_id))
    return [*map(tag_message, tags), *map(status_message, statuses)]


def _items(db: DbSession, lake: Lake, row: SessionRow) -> Iterator[tuple[bytes, bytes]]:
    """Events and frames by `(t_ms, id)`, each as the name of its message and its wire object."""
    events = [
        (record.t_ms, record.id, b"session.event", record.as_json())
        for record in reads.list_events(db, lake, row, after=None, limit=None)
    ]
    frames = [
        (frame.t_ms, frame.id, b"session.frame", frame.model_dump_json().encode())
        for frame in reads.list_frames(db, lake, row, after=None, limit=None)
    ]
    for _, _, name, data in sorted([*events, *frames]):
        yield name, data
