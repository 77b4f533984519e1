"""Arrival of sealed rows in the lake: lost files, lost tables, and sessions that are being changed."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recorder import clock
from recorder.governance.purging.purge_rows import request_purge
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.sealing import open_sealer
from recorder.sealing.arrivals import TableArrival, check_table_arrivals
from recorder.storage.lake_schemas import LakeKind, LakePartition
from recorder.tenant import Tenant
from tests.support.factories import picture
from tests.support.recorded_sessions import WORKSPACE, delete, execute, open_desk, png_item, session_row
from tests.support.sealed_sessions import open_on_either_engine
from tests.support.sealing import seal_all, seal_waiting

TENANT = Tenant(WORKSPACE, "live")


@pytest.fixture(params=["sqlite", "postgresql"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment of its own, on either engine."""
    yield from open_on_either_engine(request, tmp_path)


def seal_sessions(runtime: Runtime, count: int = 2) -> list[str]:
    """Record and seal sessions with two events and a frame each."""
    with open_desk(runtime) as desk:
        ids = [desk.record(frames=[png_item(1, picture(n))]) for n in range(count)]
    seal_all(runtime)
    return ids


def find_incomplete(runtime: Runtime) -> list[TableArrival]:
    """Return the tables that are not complete."""
    return [table for table in check_table_arrivals(runtime, pause_s=0) if not table.is_complete]


def data_files(runtime: Runtime, kind: LakeKind) -> list[Path]:
    """Return the data files of a table."""
    return sorted(Path(runtime.lake.url, WORKSPACE, "live", kind).rglob("*.parquet"))


def delete_lake_rows(runtime: Runtime, session_id: str) -> None:
    """Delete the events of a session from the lake."""
    row = session_row(runtime, session_id)
    partitions = [LakePartition(row.workflow, row.lake_date or "")]
    runtime.lake.delete_sessions("events", TENANT, partitions=partitions, session_ids=[session_id])


def test_sealed_rows_have_arrived(runtime: Runtime) -> None:
    seal_sessions(runtime)
    assert [(table.kind, table.files.rows) for table in check_table_arrivals(runtime)] == [
        ("events", 4),
        ("frames", 2),
    ]
    assert find_incomplete(runtime) == []


def test_a_data_file_that_is_gone_is_named(runtime: Runtime) -> None:
    seal_sessions(runtime)
    (file,) = data_files(runtime, "events")
    file.unlink()
    (table,) = find_incomplete(runtime)
    assert (table.kind, table.files.rows) == ("events", 4)  # the log still counts its rows
    assert table.describe() == (
        f"{WORKSPACE}/live/events holds 4 rows of 4; 1 file missing or of another size than in the log: "
        f"{file.relative_to(Path(runtime.lake.url, WORKSPACE, 'live', 'events'))}"
    )


def test_a_data_file_that_was_cut_off_is_named(runtime: Runtime) -> None:
    seal_sessions(runtime)
    (file,) = data_files(runtime, "frames")
    file.write_bytes(file.read_bytes()[:100])
    (table,) = find_incomplete(runtime)
    assert (table.kind, len(table.files.damaged)) == ("frames", 1)


def test_a_lake_that_is_gone_with_its_log_lacks_all_rows(runtime: Runtime) -> None:
    seal_sessions(runtime)
    shutil.rmtree(Path(runtime.lake.url, WORKSPACE))
    tables = find_incomplete(runtime)
    assert [(table.kind, table.expected_rows, table.files.rows) for table in tables] == [
        ("events", 4, 0),
        ("frames", 2, 0),
    ]


def test_a_damaged_log_hides_no_other_table(runtime: Runtime) -> None:
    seal_sessions(runtime)
    (file,) = data_files(runtime, "frames")
    file.unlink()
    (entry, *_) = sorted(Path(runtime.lake.url, WORKSPACE, "live", "events", "_delta_log").glob("*.json"))
    entry.write_text('{"add": {"path"')
    events, frames = find_incomplete(runtime)
    table = f"{WORKSPACE}/live/events"
    assert events.describe().startswith(f"{table} cannot be read (") and events.reading_error is not None
    assert (frames.kind, len(frames.files.damaged)) == ("frames", 1)


def test_rows_that_a_commit_deleted_are_missed(runtime: Runtime) -> None:
    ids = seal_sessions(runtime)
    delete_lake_rows(runtime, ids[0])
    assert [(table.kind, table.files.rows) for table in find_incomplete(runtime)] == [("events", 2)]


def test_more_rows_than_an_integer_of_32_bits_holds_are_expected(runtime: Runtime) -> None:
    seal_sessions(runtime, 3)
    execute(runtime, "UPDATE sessions SET event_count = 1000000000")
    (table,) = find_incomplete(runtime)
    assert table.expected_rows == 3_000_000_000


def test_a_session_that_waits_to_be_sealed_again_is_not_missed(runtime: Runtime) -> None:
    ids = seal_sessions(runtime)
    delete_lake_rows(runtime, ids[0])
    execute(runtime, "UPDATE sessions SET sealed_at = '2026-01-01 00:00:00.000000'")
    with open_sealer(runtime, "run") as sealer:
        assert sealer is not None and sealer.maintain().requeued_sessions == 1
        assert find_incomplete(runtime) == []
        seal_waiting(sealer)
    assert [table.changing_rows for table in check_table_arrivals(runtime)] == [0, 0]
    assert find_incomplete(runtime) == []


def test_a_session_is_not_missed_while_it_is_purged(runtime: Runtime) -> None:
    ids = seal_sessions(runtime)
    delete(runtime, ids[0])
    # The rows of a deleted session stay until its purge.
    assert find_incomplete(runtime) == []
    with runtime.database.transaction(write=True) as db:
        request_purge(db, db.get_one(SessionRow, ids[0]), "deletion", at=clock.now())
    assert find_incomplete(runtime) == []
    delete_lake_rows(runtime, ids[0])
    assert find_incomplete(runtime) == []
    # No other session's rows are excused by that.
    delete_lake_rows(runtime, ids[1])
    assert [table.kind for table in find_incomplete(runtime)] == ["events"]


def test_rows_that_were_committed_and_not_yet_marked_are_no_surplus(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal_sessions(runtime)
    checks: list[list[TableArrival]] = []
    with open_desk(runtime) as desk:
        desk.record()
    commit = runtime.lake.commit

    def check_after(kind: LakeKind, *values: Any, **options: Any) -> bool:
        was_added = commit(kind, *values, **options)
        if kind == "events":
            checks.append(check_table_arrivals(runtime, pause_s=0))
        return was_added

    monkeypatch.setattr(runtime.lake, "commit", check_after)
    seal_all(runtime)
    assert [(table.files.rows, table.expected_rows, table.is_complete) for table in checks[0]] == [
        (6, 4, True),
        (2, 2, True),
    ]
