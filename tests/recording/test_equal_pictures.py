"""Equal pictures of a session are stored once, however many frames show one. Contract §3 (frame item)."""

from collections.abc import Iterator

import pytest
from sqlmodel import col, insert, select

from recorder.ids import new_id
from recorder.models.frame import FrameRow
from recorder.recording.driver_cursor import DriverCursor
from recorder.recording.frames import _read_stored_frame_pictures
from recorder.runtime import Runtime
from tests.support.factories import picture
from tests.support.recorded_sessions import Desk, open_desk, png_item


@pytest.fixture
def desk(runtime: Runtime) -> Iterator[Desk]:
    """Yield a desk that records sessions."""
    with open_desk(runtime) as opened:
        yield opened


def read_frames(runtime: Runtime, session_id: str) -> list[FrameRow]:
    with runtime.database.transaction(write=False) as db:
        statement = select(FrameRow).where(col(FrameRow.session_id) == session_id)
        return list(db.exec(statement.order_by(col(FrameRow.position))))


def test_pictures_that_came_before_are_found_in_one_upload_of_several(runtime: Runtime, desk: Desk) -> None:
    pictures = [picture(n) for n in range(4)]
    session_id = desk.record(frames=[png_item(n, pictures[n % 2]) for n in range(4)], is_stopped=False)
    desk.add_frames(session_id, *[png_item(10 + n, pictures[n]) for n in range(4)])
    rows = read_frames(runtime, session_id)
    first, second = rows[0].object, rows[-1].object
    assert [row.object for row in rows] == [first] * 6 + [second] * 2
    for row, n in zip(rows, [0, 1, 0, 1, 0, 1, 2, 3], strict=True):
        assert runtime.blobs.get(row.object, row.offset, row.length) == pictures[n]


def test_one_frame_of_a_screen_that_does_not_change_is_read(runtime: Runtime, desk: Desk) -> None:
    session_id = desk.record(frames=[png_item(0, picture())], is_stopped=False)
    (shown,) = read_frames(runtime, session_id)
    others = [
        {**shown.model_dump(), "frame_id": new_id("frm"), "position": n, "t_ms": n} for n in range(2, 1_002)
    ]
    with runtime.database.transaction(write=True) as db:
        db.connection().execute(insert(FrameRow), others)
    steps = 0

    def count_step() -> None:
        nonlocal steps
        steps += 1

    connection = runtime.database.raw_connection()
    try:
        cursor = DriverCursor(connection, runtime.database.dialect)
        if cursor.is_sqlite:
            connection.set_progress_handler(count_step, 100)
        pictures = _read_stored_frame_pictures(cursor, session_id, [shown.sha256, "none", shown.sha256])
    finally:
        connection.close()
    assert pictures == {shown.sha256: (shown.object, shown.offset, shown.length)}
    assert steps <= 5, "the frames of the session were read one by one"
