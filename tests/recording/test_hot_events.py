"""Pages of events out of hot batches: the order of all, out of few batches. Contract §3."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import col, select

from recorder.errors import ReadTooLong
from recorder.ids import encode_ulid, new_id, reserve_ulid_values
from recorder.models.event import EventBatchRow
from recorder.recording import stored_events
from recorder.recording.session_stops import stop_session
from recorder.recording.stored_events import EventRecord, decode_stored_event_batch, read_stored_events
from recorder.runtime import Runtime
from recorder.storage.limited_reads import limited_read
from tests.support.recorded_sessions import Desk, open_desk, session_row

#: A batch is the times of its items, each with whether the item names itself.
Batch = list[tuple[int, bool]]
BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=5), max_size=24
)


@pytest.fixture
def desk(runtime: Runtime) -> Iterator[Desk]:
    """Yield a desk that records sessions."""
    with open_desk(runtime) as opened:
        yield opened


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of sizes of the bodies that were decoded so far."""
    sizes: list[int] = []
    real = stored_events.decompress_stored_events

    def noted(payload: bytes) -> bytes:
        body = real(payload)
        sizes.append(len(body))
        return body

    monkeypatch.setattr(stored_events, "decompress_stored_events", noted)
    return sizes


def make_item(t_ms: int, *, is_named: bool) -> dict[str, Any]:
    """Return an event; an id of its own sorts anywhere among those that the service gives."""
    item = {"t_ms": t_ms, "type": "click", "data": {"t_ms": -1}}
    return {**item, "id": f"evt_{new_id('evt')[:3:-1]}"} if is_named else item


def store(runtime: Runtime, batches: list[Batch]) -> str:
    """Store a session's batches as the ingest writes them; return the session's id."""
    session_id, position = new_id("ses"), 1
    with runtime.database.transaction(write=True) as db:
        for batch in batches:
            items = [make_item(t_ms, is_named=is_named) for t_ms, is_named in batch]
            times = [t_ms for t_ms, _ in batch]
            db.add(
                EventBatchRow(
                    session_id=session_id,
                    first_position=position,
                    n=len(batch),
                    t_min=min(times),
                    t_max=max(times),
                    first_id=f"evt_{encode_ulid(reserve_ulid_values(len(batch)))}",
                    received_ms=0,
                    payload=zstandard.compress(orjson.dumps({"events": items})),
                )
            )
            position += len(batch)
    return session_id


def read_whole(runtime: Runtime, session_id: str) -> list[EventRecord]:
    """Return the events of all batches, decoded and then sorted."""
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(EventBatchRow).where(col(EventBatchRow.session_id) == session_id)).all()
        records = [record for row in rows for record in decode_stored_event_batch(row)]
    return sorted(records, key=lambda record: (record.t_ms, record.id))


def read_pages(runtime: Runtime, session_id: str, limit: int) -> list[list[EventRecord]]:
    """Return all pages of so many events, each after the last event of the page before."""
    pages: list[list[EventRecord]] = []
    after = None
    while True:
        with runtime.database.transaction(write=False) as db:
            page, _ = read_stored_events(db, session_id, after=after, limit=limit)
        if not page:
            return pages
        pages.append(page)
        after = (page[-1].t_ms, page[-1].id)


@given(batches=BATCHES, limit=st.integers(1, 7))
def test_pages_of_overlapping_batches_are_the_sorted_whole(
    runtime: Runtime, batches: list[Batch], limit: int
) -> None:
    session_id = store(runtime, batches)
    whole = read_whole(runtime, session_id)
    pages = read_pages(runtime, session_id, limit)
    assert [record for page in pages for record in page] == whole
    assert all(len(page) == limit for page in pages[:-1])
    with runtime.database.transaction(write=False) as db:
        assert read_stored_events(db, session_id) == (whole, None)


def test_a_small_page_decodes_the_batches_that_it_needs(runtime: Runtime, decoded: list[int]) -> None:
    session_id = store(runtime, [[(10 * n + k, False) for k in range(5)] for n in range(200)])
    whole = read_whole(runtime, session_id)
    decoded.clear()
    for after, limit, batches in ((None, 2, 1), (None, 5, 1), (None, 6, 2), (501, 2, 1), (997, 9, 3)):
        position = None if after is None else (whole[after].t_ms, whole[after].id)
        begin = 0 if after is None else after + 1
        with runtime.database.transaction(write=False) as db:
            page, _ = read_stored_events(db, session_id, after=position, limit=limit)
            assert page == whole[begin : begin + limit]
        assert len(decoded) <= batches
        decoded.clear()


def test_a_page_of_batches_that_all_overlap_builds_few_events(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = store(runtime, [[(0, False), (9, False)]] * 100)
    built: list[str] = []
    real = stored_events.make_event_record

    def noted(item: dict[str, Any], event_id: str) -> EventRecord:
        built.append(event_id)
        return real(item, event_id)

    monkeypatch.setattr(stored_events, "make_event_record", noted)
    with runtime.database.transaction(write=False) as db:
        page, _ = read_stored_events(db, session_id, limit=2)
    assert [record.t_ms for record in page] == [0, 0] and len(built) <= 4


def test_a_page_that_takes_too_long_is_ended_while_it_decodes(runtime: Runtime, decoded: list[int]) -> None:
    session_id = store(runtime, [[(0, False), (9, False)]] * 100)
    with limited_read(runtime.database, limit_s=0.0) as db, pytest.raises(ReadTooLong):
        read_stored_events(db, session_id, limit=1)
    assert len(decoded) < 100


def test_the_last_mark_among_events_is_found_whatever_else_they_hold(runtime: Runtime, desk: Desk) -> None:
    deep = {"type": "success", "t_ms": "no number", "id": [None, {"é": 1e-7}]}
    session_id = desk.record(
        events=[{"t_ms": 3, "type": "error", "id": "evt_own", "data": deep}], is_stopped=False
    )
    desk.add_events(session_id, {"t_ms": 2, "type": "success"}, {"t_ms": 9, "type": "click", "data": deep})
    with runtime.database.transaction(write=True) as db:
        stop_session(db, desk.caller.tenant, session_id)
    row = session_row(runtime, session_id)
    mark = {"source": "event", "name": "error", "id": "evt_own", "t_ms": 3, "outcome": "error"}
    assert (row.outcome, row.event_mark) == ("error", mark)
