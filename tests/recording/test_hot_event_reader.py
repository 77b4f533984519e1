"""Events in SQL, read in portions over several transactions: in order, each once, few at hand."""

from typing import Any

import orjson
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from sqlmodel import col, select

from recorder.ids import encode_ulid, new_id, reserve_ulid_values
from recorder.models.event import EventBatchRow
from recorder.recording.hot_event_reader import HotEventReader, ReadBounds
from recorder.recording.stored_events import EventRecord, decode_stored_event_batch
from recorder.runtime import Runtime

#: A batch is the times of its items, each with whether the item names itself.
Batch = list[tuple[int, bool]]
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=6), max_size=30)


def store(runtime: Runtime, batches: list[Batch], *, session_id: str = "", position: int = 1) -> str:
    """Store batches as the ingest writes them; return the session's id."""
    session_id = session_id or new_id("ses")
    with runtime.database.transaction(write=True) as db:
        for batch in batches:
            items: list[dict[str, Any]] = [
                {"t_ms": t_ms, "type": "click", **({"id": f"evt_{new_id('evt')[:3:-1]}"} if is_named else {})}
                for t_ms, is_named in batch
            ]
            db.add(
                EventBatchRow(
                    session_id=session_id,
                    first_position=position,
                    n=len(batch),
                    t_min=min(t_ms for t_ms, _ in batch),
                    t_max=max(t_ms for t_ms, _ in batch),
                    first_id=f"evt_{encode_ulid(reserve_ulid_values(len(batch)))}",
                    received_ms=0,
                    payload=zstandard.compress(orjson.dumps({"events": items})),
                )
            )
            position += len(batch)
    return session_id


def read_sorted(runtime: Runtime, session_id: str) -> list[EventRecord]:
    """Return all events: every batch decoded, then everything sorted."""
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(EventBatchRow).where(col(EventBatchRow.session_id) == session_id)).all()
        records = [record for row in rows for record in decode_stored_event_batch(row)]
    return sorted(records, key=lambda record: (record.t_ms, record.id))


def read_portions(
    runtime: Runtime, reader: HotEventReader, max_events: int, max_bytes: int = 2**30
) -> list[list[EventRecord]]:
    """Return all portions, each read in a transaction of its own."""
    portions = []
    while True:
        with runtime.database.transaction(write=False) as db:
            portion = reader.read(db, max_events=max_events, max_bytes=max_bytes)
        if reader.has_ended and not portion:
            return portions
        portions += [portion] if portion else []


@given(
    batches=BATCHES,
    max_events=st.integers(1, 7),
    held=st.integers(1, 40),
    headers=st.integers(1, 8),
    begin=st.integers(0, 100),
)
def test_portions_hold_every_event_once_in_order_with_few_at_hand(
    runtime: Runtime, batches: list[Batch], max_events: int, held: int, headers: int, begin: int
) -> None:
    session_id = store(runtime, batches)
    expected = read_sorted(runtime, session_id)
    after = None
    if begin < len(expected):
        after = (expected[begin].t_ms, expected[begin].id)
        expected = expected[begin + 1 :]
    at_hand: list[int] = []
    bounds = ReadBounds(headers=headers, held_events=held)
    reader = HotEventReader(session_id, after, pause=lambda: at_hand.append(len(reader._held)), bounds=bounds)
    portions = read_portions(runtime, reader, max_events)
    assert [record for portion in portions for record in portion] == expected
    assert all(len(portion) == max_events for portion in portions[:-1])
    assert max(at_hand, default=0) <= held


def test_a_portion_ends_with_the_event_that_reaches_its_bytes(runtime: Runtime) -> None:
    session_id = store(runtime, [[(n, False) for n in range(7)]])
    size = len(read_sorted(runtime, session_id)[0].payload)
    portions = read_portions(runtime, HotEventReader(session_id), 100, max_bytes=3 * size)
    assert [len(portion) for portion in portions] == [3, 3, 1]


def test_batches_that_arrive_while_it_reads_are_read_if_they_follow(runtime: Runtime) -> None:
    session_id = store(runtime, [[(5, False)], [(9, False)]])
    reader = HotEventReader(session_id)
    with runtime.database.transaction(write=False) as db:
        first = reader.read(db, max_events=1, max_bytes=1)
    store(runtime, [[(3, False)], [(7, False)], [(11, False)]], session_id=session_id, position=3)
    rest = [record.t_ms for portion in read_portions(runtime, reader, 10) for record in portion]
    assert [record.t_ms for record in first] == [5]
    # 7 lies before what was already decoded, so it may be missing; nothing is out of order or twice.
    assert rest == sorted(set(rest)) and {9, 11} <= set(rest) <= {7, 9, 11}


def test_ordered_batches_are_decoded_once(runtime: Runtime) -> None:
    session_id = store(runtime, [[(10 * n + m, False) for m in range(5)] for n in range(50)])
    decoded: list[int] = []
    reader = HotEventReader(session_id, pause=lambda: decoded.append(len(reader._held)))
    assert len(read_portions(runtime, reader, 3)) == 84
    # Each batch once, and the last one again to see that nothing came meanwhile.
    assert len(decoded) <= 52 and max(decoded) <= 10


def test_one_call_decodes_few_batches_where_all_overlap(runtime: Runtime) -> None:
    session_id = store(runtime, [[(n, False), (1_000 - n, False)] for n in range(40)])
    decoded: list[int] = []
    bounds = ReadBounds(held_events=6, searched_batches=4)
    reader = HotEventReader(session_id, pause=lambda: decoded.append(1), bounds=bounds)
    records: list[EventRecord] = []
    with runtime.database.transaction(write=False) as db:
        while not reader.has_ended:
            before = len(decoded)
            records += reader.read(db, max_events=100, max_bytes=2**30)
            assert len(decoded) - before <= 4
        bounds = ReadBounds(searched_bytes=1)
        again = HotEventReader(session_id, pause=lambda: decoded.append(1), bounds=bounds)
        before = len(decoded)
        again.read(db, max_events=100, max_bytes=2**30)
        assert len(decoded) - before == 1
    assert records == read_sorted(runtime, session_id)
