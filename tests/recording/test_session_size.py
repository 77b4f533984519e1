"""Most that one session holds: the batch that would exceed it is refused whole. Contract §2 (size)."""

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from sqlmodel import col, func, select

from recorder.access.keys import Caller
from recorder.errors import RecorderError, SessionFull
from recorder.ids import new_id
from recorder.models.event import EventBatchRow, EventKeyRow
from recorder.models.frame import FrameRow
from recorder.recording.event_batches import check_and_pack_event_batch
from recorder.recording.frame_validation import validate_frames_json
from recorder.recording.frames import FrameUpload
from recorder.recording.ingest import IngestWriter
from recorder.runtime import Runtime
from recorder.setting_parsers import SessionSize
from recorder.tenant import Tenant
from tests.support.factories import picture
from tests.support.recorded_sessions import WORKSPACE, Desk, png_item, session_row

CLICK = {"t_ms": 1, "type": "click"}
NAMED = [{**CLICK, "id": f"evt_{name}"} for name in "abcdef"]


def open_small_desk(runtime: Runtime, **size: int) -> Desk:
    """Return a desk at which a session holds at most so much."""
    largest = SessionSize(**{"events": 5, "frames": 3, "bytes": 10**9, **size})
    writer = IngestWriter(runtime.database, session_size=largest)
    return Desk(runtime, writer, Caller(Tenant(WORKSPACE, "live"), new_id("key")))


@pytest.fixture
def desk(runtime: Runtime) -> Iterator[Desk]:
    """Yield a desk at which a session holds five events and three frames."""
    opened = open_small_desk(runtime)
    yield opened
    opened.writer.close()


def stored(runtime: Runtime, session_id: str) -> dict[str, Any]:
    """Return the stored size of a session, by its counters and by its rows."""
    row = session_row(runtime, session_id)
    with runtime.database.transaction(write=False) as db:
        rows = {
            table.__name__: db.exec(
                select(func.count()).select_from(table).where(col(table.session_id) == session_id)
            ).one()
            for table in (EventBatchRow, EventKeyRow, FrameRow)
        }
    return {
        "counts": (row.event_count, row.frame_count, row.event_bytes, row.frame_bytes, row.last_position),
        **rows,
    }


def size_of(*items: dict[str, Any]) -> int:
    """Return the bytes of a batch's body."""
    return len(orjson.dumps({"events": items}))


def test_the_batch_that_would_exceed_the_events_is_refused_whole(runtime: Runtime, desk: Desk) -> None:
    session_id = desk.record(events=[CLICK] * 3, is_stopped=False)
    before = stored(runtime, session_id)
    with pytest.raises(SessionFull, match="at most 5 events"):
        desk.add_events(session_id, *[CLICK] * 3)
    assert stored(runtime, session_id) == before
    desk.add_events(session_id, *[CLICK] * 2)
    assert session_row(runtime, session_id).event_count == 5
    with pytest.raises(SessionFull):
        desk.add_events(session_id, CLICK)


def test_of_named_events_nothing_stays_either(runtime: Runtime, desk: Desk) -> None:
    session_id = desk.record(events=NAMED[:4], is_stopped=False)
    before = stored(runtime, session_id)
    with pytest.raises(SessionFull):
        desk.add_events(session_id, *NAMED[4:])
    assert stored(runtime, session_id) == before and before["EventKeyRow"] == 4
    # Events that are stored already take no room.
    desk.add_events(session_id, *NAMED[:4])
    desk.add_events(session_id, *NAMED[:5])
    row = session_row(runtime, session_id)
    assert (row.event_count, row.event_bytes) == (5, size_of(*NAMED[:4]) + size_of(NAMED[4]))


def test_the_batch_that_would_exceed_the_frames_is_refused_whole(runtime: Runtime, desk: Desk) -> None:
    session_id = desk.record(events=[], frames=[png_item(n, picture(n)) for n in range(2)], is_stopped=False)
    before = stored(runtime, session_id)
    with pytest.raises(SessionFull, match="at most 3 frames"):
        desk.add_frames(session_id, *[png_item(n, picture(n)) for n in range(2, 4)])
    assert stored(runtime, session_id) == before
    desk.add_events(session_id, *[CLICK] * 5)
    desk.add_frames(session_id, png_item(9, picture(9)))
    assert session_row(runtime, session_id).frame_count == 3


def test_bytes_of_events_and_of_pictures_count_together(runtime: Runtime) -> None:
    data = picture(1)
    desk = open_small_desk(runtime, bytes=size_of(CLICK) + len(data))
    try:
        session_id = desk.record(events=[CLICK], frames=[png_item(0, data)], is_stopped=False)
        row = session_row(runtime, session_id)
        assert (row.event_bytes, row.frame_bytes) == (size_of(CLICK), len(data))
        with pytest.raises(SessionFull, match="bytes"):
            desk.add_events(session_id, CLICK)
        with pytest.raises(SessionFull, match="bytes"):
            desk.add_frames(session_id, png_item(1, picture(2)))
        # A picture that the session holds is not stored again.
        desk.add_frames(session_id, png_item(2, data))
        assert session_row(runtime, session_id).frame_bytes == len(data)
    finally:
        desk.writer.close()


def test_a_snapshot_counts_with_its_picture(runtime: Runtime, desk: Desk) -> None:
    page = {"v": 1, "format": "nodes", "html": ["html", {}]}
    session_id = desk.record(events=[], frames=[png_item(0, picture(1), dom=page)], is_stopped=False)
    row = session_row(runtime, session_id)
    (key,) = runtime.blobs.keys(f"frames/{WORKSPACE}/{session_id}")
    assert row.frame_bytes == len(runtime.blobs.get(key)) > len(picture(1))


def test_of_batches_that_come_at_once_only_as_many_are_stored_as_fit(runtime: Runtime, desk: Desk) -> None:
    session_id = desk.record(events=[], is_stopped=False)
    body = orjson.dumps({"events": [CLICK, CLICK]})

    async def run() -> list[Any]:
        batches = [
            check_and_pack_event_batch(
                desk.caller, session_id, body, content_type="application/json", batch_key=None
            )
            for _ in range(8)
        ]
        return await asyncio.gather(*(desk.writer.submit(batch) for batch in batches), return_exceptions=True)

    answers = asyncio.run(run())
    assert sum(isinstance(answer, bytes) for answer in answers) == 2
    assert {type(answer) for answer in answers if isinstance(answer, RecorderError)} == {SessionFull}
    assert session_row(runtime, session_id).event_count == 4


def test_a_stopped_session_is_told_to_be_stopped(runtime: Runtime, desk: Desk) -> None:
    session_id = desk.record(events=[CLICK] * 5)
    with pytest.raises(RecorderError) as raised:
        desk.add_events(session_id, CLICK)
    assert raised.value.code == "invalid_state"


def test_a_batch_that_was_answered_before_is_answered_again(runtime: Runtime, desk: Desk) -> None:
    session_id = desk.record(events=[CLICK] * 3, is_stopped=False)
    read, parts = validate_frames_json(orjson.dumps({"frames": [png_item(0, picture(n)) for n in range(3)]}))
    answers = []
    for _ in range(2):
        upload = FrameUpload(desk.caller, session_id, read, parts, "three-frames")
        checked = upload.check(runtime.database)
        answers.append(
            checked
            if isinstance(checked, bytes)
            else asyncio.run(desk.writer.submit(checked.store(runtime.blobs, {})))
        )
    assert bytes(answers[0]) == bytes(answers[1])
