"""Pages of frames: the order of the lake in SQL too, and no more rows than a page needs. Contract §1, §2."""

from collections.abc import Iterator

import pytest
from sqlalchemy import event as sql_event

from recorder.models.frame import FrameRow
from recorder.models.session import SessionRow
from recorder.recording.item_reads import read_sealed_frames
from recorder.sealing import Sealer
from tests.support.factories import Caller, frame
from tests.support.recorded_sessions import execute
from tests.support.sealing import seal_waiting

#: Their order by bytes is not that of a dictionary.
NAMES = ("frm_a", "frm_B", "frm_b", "frm_A", "frm_1", "frm_Z", "frm_z", "frm_aB", "frm_ab", "frm_AB")


@pytest.fixture
def loaded() -> Iterator[list[FrameRow]]:
    """Yield the frame rows that were read from SQL so far."""
    rows: list[FrameRow] = []

    def note(row: FrameRow, _: object) -> None:
        rows.append(row)

    sql_event.listen(FrameRow, "load", note)
    yield rows
    sql_event.remove(FrameRow, "load", note)


def record_frames(caller: Caller) -> str:
    """Record frames of three times, most of them at once; return the session's id."""
    session_id = caller.make_session()
    items = [frame(5, id=name) for name in NAMES] + [frame(9, id="frm_0"), frame(1, id="frm_zz"), frame(5)]
    assert caller.add_frames(session_id, *items).status_code == 202
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    return session_id


def read_pages(caller: Caller, session_id: str, limit: int) -> list[list[tuple[int, str]]]:
    """Return time and id of every frame, page by page."""
    address = f"/v1/sessions/{session_id}/frames?limit={limit}"
    page = caller.get(address).json()
    pages = [page]
    while page["has_more"]:
        page = caller.get(f"{address}&cursor={page['next_cursor']}").json()
        pages.append(page)
    return [[(item["t_ms"], item["id"]) for item in page["data"]] for page in pages]


def test_pages_of_equal_times_are_in_the_order_of_the_bytes_hot_and_sealed(
    caller: Caller, loaded: list[FrameRow]
) -> None:
    session_id = record_frames(caller)
    whole = read_pages(caller, session_id, 500)[0]
    assert whole == sorted(whole) and len(whole) == len(NAMES) + 3
    for limit in (1, 3, 7):
        loaded.clear()
        pages = read_pages(caller, session_id, limit)
        assert [item for page in pages for item in page] == whole
        assert all(len(page) == limit for page in pages[:-1])
        assert len(loaded) <= len(pages) * (limit + 1)
    runtime = caller.service.runtime
    sealer = Sealer(runtime, owner="tests")
    assert sealer.take()
    seal_waiting(sealer)
    execute(runtime, "UPDATE sessions SET sealed_at = '2020-01-01' WHERE id = :id", id=session_id)
    sealer.maintain()
    sealer.release()
    with runtime.database.transaction(write=False) as db:
        row = db.get_one(SessionRow, session_id)
    rows_read = sum(batch.num_rows for batch in read_sealed_frames(runtime.lake, row, limit=4))
    assert not row.is_hot and rows_read == 4
    for limit in (1, 3, 500):
        assert [item for page in read_pages(caller, session_id, limit) for item in page] == whole
