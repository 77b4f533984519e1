"""Messages after a position: all, in order, in one poll for many sessions. Contract §3."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event

from recorder.access.keys import Caller
from recorder.errors import InvalidEventId, ResumeWindowExpired
from recorder.models.session import TagCreate
from recorder.recording import item_reads
from recorder.recording.session_events import read_session_events_page
from recorder.recording.sessions import find_session
from recorder.recording.streams.catch_up import Opening, SealedCatchUp, StreamStart, find_stream_opening
from recorder.recording.streams.poll import POLLED_BYTES, POSITIONS, SessionAdvance, poll_session_advances
from recorder.recording.tags import add_tag, list_tags
from recorder.runtime import Runtime
from recorder.sealing import Sealer
from recorder.tenant import Tenant
from tests.support.factories import event as item
from tests.support.factories import frame
from tests.support.recorded_sessions import WORKSPACE, Desk, delete, execute, open_desk
from tests.support.sealing import seal_waiting


@pytest.fixture
def desk(runtime: Runtime) -> Iterator[Desk]:
    """Yield a desk that records sessions."""
    with open_desk(runtime) as opened:
        yield opened


def poll(runtime: Runtime, **positions: int) -> dict[str, SessionAdvance]:
    """Poll these sessions once."""
    with runtime.database.transaction(write=False) as db:
        return poll_session_advances(db, positions)


def read_messages(advance: SessionAdvance) -> list[Any]:
    """Return the messages of a poll."""
    return [json.loads(text) for segment in advance.segments for text in segment.texts]


def positions(advance: SessionAdvance) -> list[int]:
    """Return the positions of a poll's messages."""
    return [message["id"] for message in read_messages(advance)]


def record_mixed(desk: Desk) -> str:
    """Record a stopped session of eleven positions: status changes, events, frames and a tag."""
    return desk.record(
        events=[item(n) for n in range(5)],
        frames=[frame(1, 1, url="https://a.example/"), frame(2, 2)],
        tags=["done"],
    )


def seal(runtime: Runtime, *, swept: bool = False) -> None:
    """Seal all waiting sessions; with `swept`, delete the hot rows as half an hour later."""
    sealer = Sealer(runtime, owner="test")
    assert sealer.take()
    try:
        seal_waiting(sealer)
        if swept:
            execute(runtime, "UPDATE sessions SET sealed_at = '2020-01-01' WHERE status = 'sealed'")
            sealer.maintain()
    finally:
        sealer.release()


def opened(runtime: Runtime, session_id: str, start: StreamStart) -> Opening:
    """Return the opening of a stream for the caller of the workspace."""
    caller = Caller(Tenant(WORKSPACE, "live"), "key_a")
    with runtime.database.transaction(write=False) as db:
        return find_stream_opening(db, caller, session_id, start)


def test_every_position_is_told_once_in_order_from_any_of_them(runtime: Runtime, desk: Desk) -> None:
    session_id = record_mixed(desk)
    for after in range(12):
        advance = poll(runtime, **{session_id: after})[session_id]
        assert positions(advance) == list(range(after + 1, 12))
        assert not any(message["event"] == "stream.gap" for message in read_messages(advance))
        assert (advance.position, advance.has_more, advance.is_gone) == (max(after, 11), False, False)


def test_messages_are_the_objects_of_the_reads(runtime: Runtime, desk: Desk) -> None:
    session_id = record_mixed(desk)
    messages = read_messages(poll(runtime, **{session_id: 0})[session_id])
    with runtime.database.transaction(write=False) as db:
        row = find_session(db, Tenant(WORKSPACE, "live"), session_id)
        events = [
            json.loads(record.as_json())
            for record in read_session_events_page(db, runtime.lake, row, after=None, limit=500).items
        ]
        frames = item_reads.list_frames(db, runtime.lake, row, after=None, limit=500).items
        tags = list_tags(db, session_id, after=None, limit=10).items
    by_event: dict[str, list[Any]] = {}
    for message in messages:
        by_event.setdefault(message["event"], []).append(message["data"])
    assert by_event["session.event"] == events
    assert by_event["session.frame"] == [item.model_dump(mode="json") for item in frames]
    assert by_event["session.tag"] == [tag.model_dump(mode="json") for tag in tags]
    assert [status["status"] for status in by_event["session.status"]] == ["created", "recording", "stopped"]


def test_a_look_takes_so_many_positions_and_says_that_more_wait(runtime: Runtime, desk: Desk) -> None:
    session_id = desk.record(events=[item(0)], is_stopped=False)
    for n in range(7):
        desk.add_events(session_id, *[item(n)] * 90)
    polled, position = [], 1
    while position < 633:
        advance = poll(runtime, **{session_id: position})[session_id]
        polled += positions(advance)
        assert advance.has_more == (advance.position < 633) and len(positions(advance)) <= POSITIONS
        position = advance.position
    assert polled == list(range(2, 634))


def test_a_poll_ends_after_a_bounded_number_of_bytes(runtime: Runtime, desk: Desk) -> None:
    text = "x" * 60_000
    ids = [desk.record(events=[item(0)], is_stopped=False) for _ in range(2)]
    for session_id in ids:
        for n in range(4):
            desk.add_events(session_id, *[item(n, title=text)] * 9)
            desk.add_frames(session_id, frame(n, n))
    read: dict[str, list[int]] = {session_id: [] for session_id in ids}
    after = dict.fromkeys(ids, 0)
    while True:
        advances = poll(runtime, **after)
        for session_id, advance in advances.items():
            sizes = [len(message[2]) for segment in advance.segments for message in segment.messages]
            assert sum(sizes[:-1]) < POLLED_BYTES
            read[session_id] += positions(advance)
            assert advance.has_more == (advance.position < 43)
            after[session_id] = advance.position
        if not any(advance.has_more for advance in advances.values()):
            break
    assert read == {session_id: list(range(1, 44)) for session_id in ids}


def test_a_look_at_many_sessions_asks_as_often_as_at_one(runtime: Runtime, desk: Desk) -> None:
    ids = [record_mixed(desk) for _ in range(8)]
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        poll(runtime, **{ids[0]: 0})
        count_for_one = len(statements)
        advances = poll(runtime, **{session_id: n for n, session_id in enumerate(ids)})
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert len(statements) == 2 * count_for_one
    assert {session_id: positions(advance) for session_id, advance in advances.items()} == {
        session_id: list(range(n + 1, 12)) for n, session_id in enumerate(ids)
    }


def test_a_deleted_session_and_a_purged_one_are_gone(runtime: Runtime, desk: Desk) -> None:
    session_id = record_mixed(desk)
    delete(runtime, session_id)
    advances = poll(runtime, **{session_id: 3, "ses_purged": 5})
    assert all(advance.is_gone and not advance.segments for advance in advances.values())


def test_positions_whose_rows_were_swept_are_told_as_a_gap(runtime: Runtime, desk: Desk) -> None:
    session_id = record_mixed(desk)
    seal(runtime, swept=True)
    advance = poll(runtime, **{session_id: 4})[session_id]
    names = [(message["id"], message["event"]) for message in read_messages(advance)]
    assert names == [(9, "stream.gap"), (10, "session.tag"), (11, "session.status"), (12, "session.status")]
    assert read_messages(advance)[0]["data"] == {"session_id": session_id, "from": 5, "to": 9}
    assert (advance.position, advance.is_sealed) == (12, True)


def test_a_stream_begins_at_the_tail_at_the_start_or_behind_a_message(runtime: Runtime, desk: Desk) -> None:
    session_id = record_mixed(desk)
    starts = {
        StreamStart(): 11,
        StreamStart(is_from_start=True): 0,
        StreamStart(after=4): 4,
        StreamStart(is_from_start=True, after=4): 4,
    }
    assert {start: opened(runtime, session_id, start).position for start in starts} == starts


def test_a_position_that_is_yet_to_come_is_none_of_ours(runtime: Runtime, desk: Desk) -> None:
    session_id = record_mixed(desk)
    assert opened(runtime, session_id, StreamStart(after=11)).position == 11
    with pytest.raises(InvalidEventId):
        opened(runtime, session_id, StreamStart(after=12))


#: What is made old, and up to which position a stream can then not be resumed.
AGED = {
    "events": ("UPDATE event_batches SET received_ms = received_ms - 1801000 WHERE session_id = :one", 6),
    "frames": ("UPDATE frames SET received_ms = received_ms - 1801000 WHERE session_id = :one", 8),
    "tags": ("UPDATE tags SET created_at = '2020-01-01' WHERE session_id = :one", 9),
    "statuses": ("UPDATE session_statuses SET at = '2020-01-01' WHERE session_id = :one", 10),
    "nothing": ("UPDATE event_batches SET received_ms = received_ms - 1790000 WHERE session_id = :one", -1),
}


@pytest.mark.parametrize("what", AGED)
def test_resuming_fails_where_something_that_follows_is_older_than_half_an_hour(
    runtime: Runtime, desk: Desk, what: str
) -> None:
    session_id = record_mixed(desk)
    statement, last_refused = AGED[what]
    execute(runtime, statement, one=session_id)
    assert list_expired_positions(runtime, session_id) == list(range(last_refused + 1))


def list_expired_positions(runtime: Runtime, session_id: str) -> list[int]:
    """Return the positions of a mixed session after which no stream can be resumed."""
    refused = []
    for after in range(12):
        try:
            opened(runtime, session_id, StreamStart(after=after))
        except ResumeWindowExpired:
            refused.append(after)
    return refused


def test_from_the_start_everything_is_told_however_old(runtime: Runtime, desk: Desk) -> None:
    session_id = record_mixed(desk)
    execute(runtime, "UPDATE event_batches SET received_ms = 0 WHERE session_id = :one", one=session_id)
    assert opened(runtime, session_id, StreamStart(is_from_start=True)).position == 0


def test_what_was_swept_is_replayed_from_the_lake(runtime: Runtime, desk: Desk) -> None:
    session_id = record_mixed(desk)
    before = read_messages(poll(runtime, **{session_id: 0})[session_id])
    seal(runtime, swept=True)
    opening = opened(runtime, session_id, StreamStart(is_from_start=True))
    assert opening.swept is not None
    replay = SealedCatchUp(runtime.database, runtime.lake, opening.swept)
    portions = list(iter(replay.read, []))
    replay.close()
    replayed = [json.loads(text) for portion in portions for segment in portion for text in segment.texts]
    assert [message["id"] for message in replayed] == list(range(1, 13)) and opening.last_position == 12
    assert sorted(str(message["data"]) for message in replayed[:-1]) == sorted(
        str(message["data"]) for message in before
    )
    assert replayed[-1]["data"]["status"] == "sealed"
    # The tag and the last two changes of status are rows that no sweep deletes.
    assert list_expired_positions(runtime, session_id) == list(range(9))


def test_an_ended_stream_is_over_until_a_late_tag_comes(runtime: Runtime, desk: Desk) -> None:
    session_id = record_mixed(desk)
    seal(runtime, swept=True)
    assert opened(runtime, session_id, StreamStart(after=12)).is_over
    with runtime.database.transaction(write=True) as db:
        add_tag(db, Tenant(WORKSPACE, "live"), session_id, TagCreate(name="late"))
    opening = opened(runtime, session_id, StreamStart(after=12))
    assert not opening.is_over
    assert positions(poll(runtime, **{session_id: opening.position})[session_id]) == [13]
