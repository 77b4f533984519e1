"""The lake after power cuts, with racing writers, and when sessions are deleted or files are joined."""

import json
import os
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recorder.errors import Unavailable
from recorder.hashing import compute_hash_bucket
from recorder.storage import lake_files
from recorder.storage.lake import Lake
from recorder.storage.lake_files import LakeFile
from recorder.storage.lake_rewrites import DeletedRows
from recorder.storage.lake_schemas import LAYOUTS, LakePartition
from recorder.storage.lake_tables import LakeAhead
from recorder.storage.store_regions import mark_lake
from tests.storage.test_lake import PLACE, WORKSPACE, append, counts, rows
from tests.support.synced_files import note_syncs

PARTITION: dict[str, Any] = {"workflow": "pay", "date": "2026-05-01"}
PARTITIONS: dict[str, Any] = {"partitions": [LakePartition(**PARTITION)]}


def entry(lake: Lake, version: int) -> Path:
    """Log entry of the events table."""
    return Path(lake.url) / WORKSPACE / "live/events/_delta_log" / f"{version:020}.json"


#: Number of small files from which these tests compact a partition.
FEW_FILES = 10


def write(lake: Lake, table: pa.Table, name: str = "part") -> LakeFile:
    return lake.write_file(*PLACE, table, **PARTITION, name=name)


def reopened(lake: Lake) -> Lake:
    """Return the lake as another process sees it."""
    return Lake(lake.url)


# Written and committed


def test_files_are_committed_together_and_once(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    files = [write(lake, rows(f"ses_{number}")) for number in range(3)]
    assert lake.version(*PLACE) is None and counts(lake) == {}
    kept = json.loads(json.dumps([file.to_json() for file in files]))
    files = [LakeFile.from_json(value) for value in kept]
    assert lake.commit(*PLACE, files, lane="lane", number=1)
    assert lake.version(*PLACE) == 1
    assert not reopened(lake).commit(*PLACE, files, lane="lane", number=1)
    assert counts(lake) == {"ses_0": 3, "ses_1": 3, "ses_2": 3}
    with pytest.raises(LakeAhead):
        lake.commit(*PLACE, [], lane="lane", number=0)


def test_a_name_is_never_written_twice(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    first, second = write(lake, rows("ses_1")), write(lake, rows("ses_2"))
    assert first.path != second.path
    lake.commit(*PLACE, [first], lane="lane", number=1)
    assert counts(lake) == {"ses_1": 3}
    for options in ({"name": "a/b"}, {"workflow": "../x"}, {"date": "a b"}):
        with pytest.raises(ValueError):
            lake.write_file(*PLACE, rows(), **{**PARTITION, "name": "part", **options})


def test_row_groups_are_bounded_by_rows_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_files, "ROW_GROUP_BYTES", 256 * 1024)
    lake = Lake(str(tmp_path))
    wide = rows("ses_1", 400)
    payload = pa.array(["x" * (5_000 if seq > 200 else 10) for seq in wide["seq"].to_pylist()])
    wide = wide.set_column(wide.schema.get_field_index("payload"), wide.schema.field("payload"), payload)
    file = write(lake, pa.concat_tables([wide, rows("ses_2", 20_000)]))
    metadata = pq.read_metadata(tmp_path / WORKSPACE / "live/events" / file.path)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    assert sum(group.num_rows for group in groups) == file.rows == 20_400
    assert max(group.num_rows for group in groups) <= LAYOUTS["events"].row_group_rows
    assert len(groups) >= 5 and max(group.num_rows for group in groups) > 1_000


def test_batches_out_of_order_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    ordered = rows("ses_1", 20_000).sort_by("seq").to_batches()[0]
    parts = [ordered.slice(0, 9_000), ordered.slice(9_000)]
    lake.write_file(*PLACE, iter(parts), **PARTITION, name="part")
    with pytest.raises(ValueError, match="sorted"):
        lake.write_file(*PLACE, reversed(parts), **PARTITION, name="part")
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_statistics_let_readers_skip_files(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.commit(*PLACE, [write(lake, rows("ses_1", 10))], lane="lane", number=1)
    [action] = pa.table(DeltaTable(entry(lake, 0).parents[1]).get_add_actions(flatten=True)).to_pylist()
    assert (action["min.t_ms"], action["max.t_ms"], action["num_records"]) == (0, 90, 10)
    assert action["min.session_id"] == action["max.session_id"] == "ses_1"
    assert action["min.bucket"] == compute_hash_bucket("ses_1") and action["null_count.t_ms"] == 0
    assert action["max.ts"].isoformat() == "1970-01-01T00:00:00.090000+00:00"
    assert not [name for name in action if "payload" in name]


def test_racing_lanes_append_to_one_table(tmp_path: Path) -> None:
    lanes, numbers = 6, 8
    barrier = threading.Barrier(2 * lanes)
    added: list[tuple[str, int]] = []

    def run(lane: str) -> None:
        lake = Lake(str(tmp_path))
        barrier.wait(timeout=60)
        for number in range(1, numbers + 1):
            try:
                if append(lake, number, session_id=f"ses_{lane}x{number}", lane=lane):
                    added.append((lane, number))
            except LakeAhead:
                continue

    # Two runs of each lane, so that every number is raced for as well.
    running = [threading.Thread(target=run, args=(f"l{index // 2}",)) for index in range(2 * lanes)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    expected = {f"ses_l{lane}x{number}": 3 for lane in range(lanes) for number in range(1, numbers + 1)}
    assert counts(Lake(str(tmp_path))) == expected
    assert Counter(added) == {(f"l{lane}", n): 1 for lane in range(lanes) for n in range(1, numbers + 1)}


def test_a_file_is_synced_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(str(tmp_path))
    write(lake, rows("ses_0"))
    synced = note_syncs(monkeypatch)
    path = entry(lake, 0).parents[1] / write(lake, rows("ses_1")).path
    assert synced == [str(path), str(path.parent)]


def test_what_another_process_committed_is_synced_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other process may have been killed before its commit was durable.
    lake = Lake(str(tmp_path))
    append(lake, 1)
    append(lake, 2)
    synced = note_syncs(monkeypatch)
    assert not append(reopened(lake), 2)
    assert {str(entry(lake, 2)), str(entry(lake, 0).parent)} <= set(synced)
    synced.clear()
    assert not reopened(lake).commit(*PLACE, [], lane="lane", number=2)
    assert {str(entry(lake, 2)), str(entry(lake, 0).parent)} <= set(synced)
    assert lake.delete_sessions(*PLACE, **PARTITIONS, session_ids=["ses_1"]) == DeletedRows(3)
    synced.clear()
    assert reopened(lake).delete_sessions(*PLACE, **PARTITIONS, session_ids=["ses_1"]) == DeletedRows(0)
    assert {str(entry(lake, 3)), str(entry(lake, 0).parent)} <= set(synced)


# After a power cut


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    left = {
        "emptied": b"",
        "cut": data[: len(data) // 2],
        "cut at a line": lines[0],
        "zeros": b"\0" * len(data),
    }
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(left[how])


@pytest.mark.parametrize("how", ["emptied", "cut", "cut at a line", "zeros"])
def test_a_damaged_last_entry_is_no_version(tmp_path: Path, how: str) -> None:
    lake = Lake(str(tmp_path))
    append(lake, 1)
    append(lake, 2)
    damage(entry(lake, 2), how)
    lake = reopened(lake)
    assert lake.version(*PLACE) == 1 and counts(lake) == {"ses_1": 3}
    assert entry(lake, 2).exists(), "a reader changes nothing"
    assert append(lake, 2)
    assert counts(reopened(lake)) == {"ses_1": 3, "ses_2": 3}
    assert len(list(entry(lake, 2).parent.glob("*2.json.damaged-*"))) == 1


@pytest.mark.parametrize("how", ["emptied", "cut", "gone"])
def test_entries_behind_a_damaged_one_are_no_versions(tmp_path: Path, how: str) -> None:
    lake = Lake(str(tmp_path))
    for number in range(1, 6):
        append(lake, number)
    damage(entry(lake, 3), how)
    lake = reopened(lake)
    assert lake.version(*PLACE) == 2 and counts(lake) == {"ses_1": 3, "ses_2": 3}
    assert [append(lake, number) for number in (3, 4)] == [True, True]
    assert counts(reopened(lake)) == {f"ses_{number}": 3 for number in range(1, 5)}


@pytest.mark.parametrize("how", ["emptied", "cut", "gone"])
def test_a_table_whose_creation_is_damaged_is_created_again(tmp_path: Path, how: str) -> None:
    lake = Lake(str(tmp_path))
    append(lake, 1)
    damage(entry(lake, 0), how)
    lake = reopened(lake)
    assert lake.version(*PLACE) is None and counts(lake) == {}
    assert append(lake, 1)
    assert counts(reopened(lake)) == {"ses_1": 3}


def test_damaged_entries_are_set_aside_once_by_racing_writers(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    append(lake, 1)
    for _ in range(5):
        version = lake.version(*PLACE)
        assert version is not None
        damage(entry(lake, version), "emptied")
        barrier = threading.Barrier(4)

        def run(number: int, barrier: threading.Barrier = barrier) -> None:
            fresh = Lake(str(tmp_path))
            barrier.wait(timeout=60)
            append(fresh, 1, session_id=f"ses_{number}", lane=f"lane-{time.monotonic_ns()}")

        running = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        lake = reopened(lake)
        assert set(counts(lake)) >= {f"ses_{number}" for number in range(4)}


def test_a_whole_entry_is_never_set_aside(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    for number in range(1, 6):
        append(reopened(lake), number)
    lake.compact(*PLACE)
    assert not list(tmp_path.rglob("*.damaged*"))


def test_checkpoints_are_written_whole_and_used(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), checkpoint_every=5)
    for number in range(1, 13):
        append(lake if number % 2 else Lake(lake.url, checkpoint_every=5), number)
    folder = entry(lake, 0).parent
    assert [path.name[:20] for path in sorted(folder.glob("*.checkpoint.parquet"))] == [
        f"{version:020}" for version in (4, 9)
    ]
    assert json.loads((folder / "_last_checkpoint").read_text())["version"] == 9
    assert not list(folder.parent.glob("_checkpoint-*"))
    for version in range(9):
        entry(lake, version).unlink()
    assert counts(reopened(lake)) == {f"ses_{number}": 3 for number in range(1, 13)}
    assert append(reopened(lake), 13) and not append(reopened(lake), 13)


def test_the_mark_of_a_region_survives_a_damaged_entry(tmp_path: Path) -> None:
    assert mark_lake(str(tmp_path), "eu") == "eu"
    (tmp_path / "deployment/_delta_log" / f"{0:020}.json").write_bytes(b"")
    assert mark_lake(str(tmp_path), "eu") == "eu"
    assert mark_lake(str(tmp_path), "us") == "eu"


# Counted and deleted


def test_rows_of_sessions_are_counted(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    append(lake, 1)
    append(lake, 2, session_id="ses_1")
    lake.append(*PLACE, rows("ses_9", 20_000), lane="lane", number=3)
    lake.append(*PLACE, rows("ses_1", workflow="ship"), lane="lane", number=4)
    counted = lake.count_session_rows(*PLACE, **PARTITIONS, session_ids=["ses_1", "ses_9", "ses_none"])
    assert counted == {"ses_1": 6, "ses_9": 20_000, "ses_none": 0}
    assert Lake(str(tmp_path / "no")).count_session_rows(*PLACE, **PARTITIONS, session_ids=["ses_1"]) == {
        "ses_1": 0
    }


def test_sessions_are_deleted_and_others_stay(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.append(*PLACE, pa.concat_tables([rows(f"ses_{n}", 5) for n in range(6)]), lane="a", number=1)
    append(lake, 1, session_id="ses_1")
    lake.append(*PLACE, rows("ses_1", workflow="ship"), lane="lane", number=2)
    delete = partial(lake.delete_sessions, *PLACE, **PARTITIONS)
    assert delete(session_ids=["ses_1", "ses_4", "ses_none"]) == DeletedRows(13)
    assert delete(session_ids=["ses_1", "ses_4"]) == DeletedRows(0)
    # The other partition keeps its rows.
    assert counts(reopened(lake)) == {"ses_0": 5, "ses_2": 5, "ses_3": 5, "ses_5": 5, "ses_1": 3}
    assert delete(session_ids=[]) == DeletedRows(0)


def test_rows_of_several_partitions_are_counted_and_deleted_together(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    for number, workflow in enumerate(("pay", "ship", "other"), 1):
        lake.append(*PLACE, rows("ses_1", number, workflow=workflow), lane="lane", number=number)
    partitions = [LakePartition(workflow, "2026-05-01") for workflow in ("pay", "ship")]
    before = lake.version(*PLACE)
    assert before is not None
    wanted: dict[str, Any] = {"partitions": partitions, "session_ids": ["ses_1"]}
    assert lake.count_session_rows(*PLACE, **wanted) == {"ses_1": 3}
    assert lake.delete_sessions(*PLACE, **wanted) == DeletedRows(3)
    assert lake.version(*PLACE) == before + 1 and counts(lake) == {"ses_1": 3}
    elsewhere = [LakePartition("ship", "2026-05-02"), LakePartition("pay", "2026-05-02")]
    assert lake.count_session_rows(*PLACE, partitions=elsewhere, session_ids=["ses_1"]) == {"ses_1": 0}


def test_a_delete_whose_time_is_up_is_continued_by_the_next_call(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    for number in range(1, 21):
        lake.append(
            *PLACE, pa.concat_tables([rows("ses_1"), rows(f"ses_n{number}")]), lane="lane", number=number
        )
    delete = partial(
        lake.delete_sessions, *PLACE, **PARTITIONS, session_ids=["ses_1"], is_time_up=lambda: True
    )
    parts = [delete() for _ in range(4)]
    assert [part.is_complete for part in parts] == [False, False, True, True]
    assert all(part.count for part in parts[:3]) and sum(part.count for part in parts) == 60
    assert counts(reopened(lake)) == {f"ses_n{number}": 3 for number in range(1, 21)}


@pytest.mark.parametrize("bad", ["x' OR '1'='1", "ses_1\n", "ses_", "SES_1", "ses_é", ""])
def test_a_hostile_id_deletes_nothing(tmp_path: Path, bad: str) -> None:
    lake = Lake(str(tmp_path))
    append(lake, 1)
    with pytest.raises(ValueError):
        lake.delete_sessions(*PLACE, **PARTITIONS, session_ids=["ses_1", bad])
    assert counts(lake) == {"ses_1": 3}


def test_deletes_and_compaction_race_with_appends(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), compact_at_files=FEW_FILES)
    for number in range(1, 31):
        append(lake, number, lane="first")
    failed: list[BaseException] = []

    def keep(act: Any) -> None:
        try:
            act(Lake(str(tmp_path), compact_at_files=FEW_FILES))
        except BaseException as error:
            failed.append(error)

    def add(writer: Lake) -> None:
        for number in range(1, 11):
            append(writer, number, session_id=f"ses_n{number}", lane="second")

    def delete(writer: Lake) -> None:
        for number in range(1, 11):
            assert writer.delete_sessions(*PLACE, **PARTITIONS, session_ids=[f"ses_{number}"]).count == 3

    def compact(writer: Lake) -> None:
        for _ in range(3):
            writer.compact(*PLACE)

    running = [threading.Thread(target=keep, args=(act,)) for act in (add, delete, compact)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failed
    expected = [*(f"ses_{n}" for n in range(11, 31)), *(f"ses_n{n}" for n in range(1, 11))]
    assert counts(Lake(str(tmp_path), compact_at_files=FEW_FILES)) == dict.fromkeys(expected, 3)


# Joined


def test_compaction_keeps_the_order_so_that_sessions_still_stream(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), compact_at_files=FEW_FILES)
    long = rows("ses_long", 3_000).sort_by("seq")
    for number in range(1, 11):
        part = long.slice((number - 1) * 300, 300)
        lake.append(*PLACE, pa.concat_tables([part, rows(f"ses_{number}")]), lane="lane", number=number)
    assert lake.compact(*PLACE) == 10
    [file] = DeltaTable(entry(lake, 0).parents[1]).file_uris()
    stored = pq.read_table(file, columns=["bucket", "session_id", "t_ms", "event_id"]).to_pylist()
    keys = [tuple(row.values()) for row in stored]
    assert keys == sorted(keys) and len(keys) == 3_030
    batches = list(lake.read_session_batches(*PLACE, **PARTITION, session_id="ses_long", columns=["seq"]))
    assert [seq for batch in batches for seq in batch["seq"].to_pylist()] == list(range(3_000))


def test_compaction_stops_when_it_may_not_go_on(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), compact_at_files=FEW_FILES)
    for number in range(1, 11):
        append(lake, number)

    def stop() -> None:
        raise Unavailable("The lease")

    with pytest.raises(Unavailable):
        lake.compact(*PLACE, check=stop)
    assert len(DeltaTable(entry(lake, 0).parents[1]).file_uris()) == 10


def test_old_files_that_no_commit_names_are_deleted(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), compact_at_files=FEW_FILES)
    for number in range(1, 11):
        append(lake, number)
    before = lake.version(*PLACE)
    lake.compact(*PLACE)
    abandoned, young, ancient = (write(lake, rows(), name) for name in ("old", "young", "ancient"))
    table = entry(lake, 0).parents[1]
    # All files but two are two days old; so are the entries that name them.
    for path in [*table.rglob("*.parquet"), *table.rglob("*.json")]:
        os.utime(path, (time.time() - 2 * 86_400,) * 2)
    os.utime(table / young.path, (time.time() - 23 * 3_600,) * 2)
    os.utime(table / ancient.path, (time.time() - 40 * 86_400,) * 2)
    lake.maintain(*PLACE)
    assert not (table / abandoned.path).exists() and not (table / ancient.path).exists()
    assert (table / young.path).exists()
    assert len(counts(lake)) == 10
    assert lake.scan(*PLACE, version=before).collect().height == 30, "replaced files are kept"
