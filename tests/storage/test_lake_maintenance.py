"""Maintenance of a lake table: rows are kept, unused files are deleted, and reads under way go on."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from recorder import clock
from recorder.errors import Unavailable
from recorder.exports.planning.plan import Sampling
from recorder.exports.planning.sharding import PlannedShard
from recorder.exports.writers import ShardTask, read_shard_task_rows
from recorder.storage.lake import Lake
from recorder.storage.lake_maintenance import LakeTimes
from recorder.storage.lake_reads import retry_lake_read
from recorder.storage.lake_tables import LakeAhead, LakeTable
from tests.storage.test_lake import PLACE, append, counts, rows
from tests.storage.test_lake_durability import PARTITION, PARTITIONS

#: Small files from which these tests compact a partition that still grows.
FEW_FILES = 10


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path), compact_at_files=FEW_FILES)


#: Removed files, old versions and their entries in the log go at once.
_AT_ONCE = timedelta(seconds=-60)
NO_GRACE = LakeTimes(removed_files=_AT_ONCE, versions=_AT_ONCE, log_entries=_AT_ONCE)


@pytest.fixture
def hasty(tmp_path: Path) -> Lake:
    """Return the lake without the time that readers get."""
    return Lake(str(tmp_path), compact_at_files=FEW_FILES, times=NO_GRACE)


def folder(lake: Lake) -> Path:
    """Return the folder of the table."""
    return Path(lake.stored_table(*PLACE).path)


def files_on_disk(lake: Lake) -> set[Path]:
    """Return every data file, in use or not."""
    return set(folder(lake).glob("workflow=*/**/*.parquet"))


def live_files(lake: Lake) -> set[Path]:
    """Return the data files of the newest version."""
    return {Path(uri) for uri in DeltaTable(folder(lake)).file_uris()}


def size(files: set[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def fill(lake: Lake, first: int, last: int) -> None:
    """Append batches, and compact as sealing does."""
    for number in range(first, last + 1):
        append(lake, number)
        lake.compact(*PLACE)


def expected(last: int) -> dict[str, int]:
    return {f"ses_{number}": 3 for number in range(1, last + 1)}


def test_replaced_files_go_after_the_grace(lake: Lake, hasty: Lake) -> None:
    fill(lake, 1, 10)
    assert len(files_on_disk(lake)) == 11
    assert lake.maintain(*PLACE).deleted.count == 0
    assert len(files_on_disk(lake)) == 11, "a reader may still open them"
    done = hasty.maintain(*PLACE)
    assert (done.before.count, done.after.count, done.deleted.count) == (11, 1, 10)
    assert done.deleted.size_bytes == done.before.size_bytes - done.after.size_bytes > 0
    assert files_on_disk(lake) == live_files(lake) and counts(lake) == expected(10)


def test_files_that_a_running_export_pins_are_kept(hasty: Lake) -> None:
    lake = hasty
    fill(lake, 1, 9)
    pinned, since = lake.version(*PLACE), clock.now() - timedelta(seconds=1)
    fill(lake, 10, 10)
    assert lake.maintain(*PLACE, pinned_since=since).deleted.count == 0
    assert lake.scan(*PLACE, version=pinned).collect().height == 27
    assert lake.maintain(*PLACE).deleted.count == 10


def test_files_of_past_days_are_joined(lake: Lake) -> None:
    now = clock.now()
    today, yesterday = (at.date().isoformat() for at in (now, now - timedelta(days=1)))
    for number in range(1, 5):
        append(lake, number)
        lake.append(*PLACE, rows(f"ses_today{number}", date=today), lane="today", number=number)
        # A batch is committed within a day of its date.
        lake.append(*PLACE, rows(f"ses_yesterday{number}", date=yesterday), lane="yesterday", number=number)
    assert lake.compact(*PLACE) == 0, "sealing joins partitions with many small files alone"
    assert lake.maintain(*PLACE).joined_files == 4
    assert lake.maintain(*PLACE).joined_files == 0
    by_date = [path.parent.name for path in live_files(lake)]
    assert sorted(by_date) == ["date=2026-05-01", *[f"date={yesterday}"] * 4, *[f"date={today}"] * 4]
    recent = {f"ses_{day}{number}": 3 for number in range(1, 5) for day in ("today", "yesterday")}
    assert counts(lake) == {**expected(4), **recent}


def test_every_row_is_there_once_and_the_disk_does_not_grow(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), compact_at_files=FEW_FILES, checkpoint_every=10, times=NO_GRACE)
    for last in range(20, 61, 20):
        fill(lake, last - 19, last)
        before = len(list((folder(lake) / "_delta_log").iterdir()))
        lake.maintain(*PLACE)
        lake.maintain(*PLACE)  # deletes what the one before replaced
        assert counts(lake) == expected(last)
        assert size(files_on_disk(lake)) <= 1.5 * size(live_files(lake))
        assert len(list((folder(lake) / "_delta_log").iterdir())) < before
    # The log begins with a checkpoint, which holds the numbers of batches.
    assert len(list((folder(lake) / "_delta_log").iterdir())) <= 4
    assert not append(lake, 60) and not append(Lake(str(tmp_path)), 60)
    with pytest.raises(LakeAhead):
        append(lake, 7)
    assert append(lake, 61) and counts(lake) == expected(61)


def test_versions_of_the_last_day_stay_readable(lake: Lake) -> None:
    fill(lake, 1, 10)
    two_days_ago = time.time() - 2 * 86_400
    lake.clean_log(*PLACE)
    for path in (folder(lake) / "_delta_log").iterdir():
        os.utime(path, (two_days_ago,) * 2)
    kept = lake.version(*PLACE)
    fill(lake, 11, 12)
    lake.maintain(*PLACE)
    assert lake.scan(*PLACE, version=kept).collect().height == 30
    # Older ones open as the newest.
    assert lake.scan(*PLACE, version=3).collect().height == 36


def test_a_version_of_last_evening_stays_readable(lake: Lake) -> None:
    fill(lake, 1, 3)
    kept = lake.version(*PLACE)
    fill(lake, 4, 10)
    lake.clean_log(*PLACE)
    for path in (folder(lake) / "_delta_log").iterdir():
        os.utime(path, (time.time() - 20 * 3_600,) * 2)
    fill(lake, 11, 12)
    lake.maintain(*PLACE)
    assert lake.scan(*PLACE, version=kept).collect().height == 9


def test_what_a_killed_process_left_of_a_checkpoint_goes_with_the_log(lake: Lake) -> None:
    fill(lake, 1, 3)
    killed = folder(lake) / "_checkpoint-killed"
    (killed / "_delta_log").mkdir(parents=True)
    os.link(folder(lake) / "_delta_log" / f"{0:020}.json", killed / "_delta_log" / f"{0:020}.json")
    lake.clean_log(*PLACE)
    assert not killed.exists()


def test_a_checkpoint_that_another_process_writes_is_left_and_the_log_is_not_clean_yet(lake: Lake) -> None:
    fill(lake, 1, 3)
    lake.clean_log(*PLACE)
    written = folder(lake) / "_checkpoint-written"
    written.mkdir()
    with (folder(lake) / "_delta_log" / "_checkpoint.lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(Unavailable):
            lake.clean_log(*PLACE)
        assert written.exists()
    lake.clean_log(*PLACE)
    assert not written.exists()


def test_removals_are_known_from_checkpoints_too(lake: Lake) -> None:
    fill(lake, 1, 10)
    for path in (folder(lake) / "_delta_log").iterdir():
        os.utime(path, (time.time() - 3_600,) * 2)
    assert lake.clean_log(*PLACE) > 0
    for path in files_on_disk(lake):
        os.utime(path, (time.time() - 2 * 86_400,) * 2)
    assert lake.maintain(*PLACE).deleted.count == 0, "they were replaced a moment ago"


# Passes that were killed


class Killed(BaseException):
    """The end of a pass's process."""


def kill_after(calls: int, work: Callable[..., Any] = lambda: None) -> Callable[..., Any]:
    """Return a function that does its work so many times, and ends the pass instead at the next call."""
    left = count(calls, -1)

    def work_or_kill(*arguments: Any, **named: Any) -> Any:
        if next(left) <= 0:
            raise Killed
        return work(*arguments, **named)

    return work_or_kill


def require_that_the_next_pass_ends_it(lake: Lake, most_files: int) -> None:
    """Check that the passes after a killed one complete it."""
    again = Lake(lake.url, compact_at_files=FEW_FILES, times=NO_GRACE)
    assert counts(again) == expected(10)
    again.maintain(*PLACE)
    again.maintain(*PLACE)
    assert counts(again) == expected(10) and live_files(again) <= files_on_disk(again)
    assert len(files_on_disk(again)) <= most_files
    assert not append(again, 10) and append(again, 11)


# Before the joined file; before and between the files that go; before and between the entries of the log.
@pytest.mark.parametrize("checks", [0, 4, 8, 15, 20])
def test_a_pass_that_is_killed_before_a_file_is_done_by_the_next(hasty: Lake, checks: int) -> None:
    for number in range(1, 11):
        append(hasty, number)
    check = kill_after(checks)
    with pytest.raises(Killed):
        for _ in range(3):
            hasty.maintain(*PLACE, check=check)
    require_that_the_next_pass_ends_it(hasty, 1)


@pytest.mark.parametrize("name", ["commit", "checkpoint"])
def test_a_pass_that_is_killed_before_a_version_is_done_by_the_next(
    hasty: Lake, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 11):
        append(hasty, number)
    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, name, kill_after(0))
        with pytest.raises(Killed):
            hasty.maintain(*PLACE)
    # A file that was written and not committed goes after a day.
    require_that_the_next_pass_ends_it(hasty, 2 if name == "commit" else 1)


_PASS = """
import os, sys
from datetime import timedelta
from recorder.storage.lake import Lake
from recorder.storage.lake_maintenance import LakeTimes
from tests.storage.test_lake import PLACE
left = int(sys.argv[2])
def check():
    global left
    left -= 1
    if left < 0:
        os._exit(9)
times = LakeTimes(removed_files=timedelta(seconds=-60))
Lake(sys.argv[1], compact_at_files=10, times=times).maintain(*PLACE, check=check)
"""


def test_a_process_that_ends_in_a_pass_leaves_a_whole_table(lake: Lake) -> None:
    fill(lake, 1, 12)
    codes = []
    for checks in (0, 5):
        done = subprocess.run([sys.executable, "-c", _PASS, lake.url, str(checks)], check=False)
        codes.append(done.returncode)
        assert counts(Lake(lake.url)) == expected(12)
    done = subprocess.run([sys.executable, "-c", _PASS, lake.url, "1000"], check=False)
    assert [*codes, done.returncode] == [9, 9, 0]
    assert counts(Lake(lake.url)) == expected(12) and files_on_disk(lake) == live_files(lake)


# Reads under way


def export_rows(lake: Lake) -> int:
    """Return the number of rows that the export of a session reads."""
    task = ShardTask(
        tenant=PLACE[1],
        format="jsonl",
        shards=[
            PlannedShard(
                kind="events",
                ending="jsonl",
                workflow=PARTITION["workflow"],
                bucket=0,
                bucket_bits=0,
                split=None,
                content_key="",
                rows=300,
                sessions=pl.DataFrame(
                    [
                        {
                            **PARTITION,
                            "session_id": "ses_long",
                            "outcome": None,
                            "actor_kind": None,
                            "split": "train",
                            "rows": 300,
                            "payload_bytes": 0,
                        }
                    ]
                ),
            )
        ],
        sampling=Sampling(mode="all"),
        lake_url=lake.url,
        blob_url=lake.url,
        cold_url=lake.url,
        target=None,  # type: ignore[arg-type]  # nothing is written
    )
    [(events,)] = read_shard_task_rows(task)
    return events.height


def page(lake: Lake) -> int:
    """Return the rows of a session, read page by page."""
    seen: list[str] = []
    after: tuple[int, str] | None = None
    while True:
        batches = list(
            lake.read_session_batches(
                *PLACE,
                **PARTITION,
                session_id="ses_long",
                after=after,
                columns=["t_ms", "event_id"],
                limit=40,
            )
        )
        records = [row for batch in batches for row in batch.to_pylist()]
        if not records:
            assert len(seen) == len(set(seen))
            return len(seen)
        seen += [row["event_id"] for row in records]
        after = (records[-1]["t_ms"], records[-1]["event_id"])


READS: list[Callable[[Lake], int]] = [
    lambda lake: lake.read_session(*PLACE, **PARTITION, session_id="ses_long").height,
    lambda lake: sum(
        batch.num_rows
        for batch in lake.read_session_batches(*PLACE, **PARTITION, session_id="ses_long", columns=["seq"])
    ),
    page,
    lambda lake: lake.count_session_rows(*PLACE, **PARTITIONS, session_ids=["ses_long"])["ses_long"],
    lambda lake: retry_lake_read(lambda: lake.scan(*PLACE).filter(session_id="ses_long").collect()).height,
    export_rows,
]


def append_long_session(lake: Lake) -> None:
    """Append a session of 300 rows in ten files, whose times do not overlap."""
    long = rows("ses_long", 300).sort_by("seq")
    for number in range(10):
        lake.append(*PLACE, long.slice(30 * number, 30), lane="long", number=number + 1)


def test_a_session_that_is_being_read_goes_on_where_its_files_vanish(hasty: Lake) -> None:
    lake = hasty
    append_long_session(lake)
    batches = lake.read_session_batches(*PLACE, **PARTITION, session_id="ses_long", columns=["seq"])
    records = next(batches)["seq"].to_pylist()
    assert len(records) < 300
    lake.maintain(*PLACE)
    lake.maintain(*PLACE)
    assert len(files_on_disk(lake)) == 1
    for batch in batches:
        records += batch["seq"].to_pylist()
    assert records == list(range(300))


def test_a_read_whose_files_are_gone_for_good_is_unavailable(lake: Lake) -> None:
    append_long_session(lake)
    for path in files_on_disk(lake):
        path.unlink()
    for read in READS:
        with pytest.raises(Unavailable):
            read(lake)


def test_readers_never_fail_while_files_are_replaced_and_deleted(hasty: Lake) -> None:
    lake = hasty
    append_long_session(lake)
    failed: list[BaseException] = []
    reads = 0
    is_over = threading.Event()

    def read_all() -> None:
        nonlocal reads
        while not is_over.is_set():
            for read in READS:
                try:
                    assert read(Lake(lake.url)) == 300
                    reads += 1
                except BaseException as error:
                    failed.append(error)
                    return

    readers = [threading.Thread(target=read_all) for _ in range(2)]
    for reader in readers:
        reader.start()
    deleted = 0
    began, number = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < 6 or (elapsed < 120 and deleted <= 20):
        number += 1
        append(lake, number)
        deleted += lake.maintain(*PLACE).deleted.count
    is_over.set()
    for reader in readers:
        reader.join()
    assert not failed, failed[0]
    assert reads > len(READS) and deleted > 20
    assert counts(lake) == {"ses_long": 300, **expected(number)}


# Races


def test_sealer_maintenance_and_purges_lose_and_double_nothing(lake: Lake) -> None:
    for number in range(1, 31):
        append(lake, number, lane="first")
    failed: list[BaseException] = []
    is_over = threading.Event()

    def seal(lane: str, writer: Lake) -> None:
        for number in range(1, 21):
            repeat(partial(append, writer, number, session_id=f"ses_{lane}{number}", lane=lane))
            repeat(lambda: writer.compact(*PLACE))
            assert not repeat(partial(append, writer, number, session_id=f"ses_{lane}{number}", lane=lane))

    def purge(writer: Lake) -> None:
        for number in range(1, 16):
            wanted: dict[str, Any] = {**PARTITIONS, "session_ids": [f"ses_{number}"]}
            repeat(partial(writer.delete_sessions, *PLACE, **wanted))
            repeat(partial(writer.delete_dead_files, *PLACE, **wanted))
            repeat(lambda: writer.clean_log(*PLACE))

    def maintain(writer: Lake) -> None:
        while not is_over.is_set():
            repeat(lambda: writer.maintain(*PLACE))

    def guard(work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(
                    *arguments, Lake(lake.url, compact_at_files=FEW_FILES, checkpoint_every=7, times=NO_GRACE)
                )
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    working = [guard(seal, "a"), guard(seal, "b"), guard(purge)]
    lane = guard(maintain)
    for thread in working:
        thread.join()
    is_over.set()
    lane.join()
    assert not failed, failed[0]
    lake.maintain(*PLACE)
    left = [f"ses_{number}" for number in range(16, 31)]
    sealed = [f"ses_{lane}{number}" for lane in "ab" for number in range(1, 21)]
    assert counts(Lake(lake.url)) == dict.fromkeys([*left, *sealed], 3)
    for lane_name in ("a", "b"):
        assert not append(lake, 20, lane=lane_name)
        with pytest.raises(LakeAhead):
            append(lake, 3, lane=lane_name)


def repeat(work: Callable[[], Any]) -> Any:
    """Do some work, again after the lake did not answer, as every run of it does."""
    for _ in range(20):
        try:
            return work()
        except Unavailable:
            time.sleep(0.01)
    return work()
