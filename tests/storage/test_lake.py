"""The lake: a numbered batch is added once, whoever else writes at the same moment. Design §3."""

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pytest

from recorder.errors import Unavailable
from recorder.hashing import compute_hash_bucket
from recorder.storage.lake import Lake
from recorder.storage.lake_files import write_lake_file
from recorder.storage.lake_schemas import LAYOUTS, LakeKind, TableLayout
from recorder.storage.lake_tables import LakeAhead
from recorder.tenant import Tenant

WORKSPACE = "wsp_a"
PLACE: tuple[LakeKind, Tenant] = ("events", Tenant(WORKSPACE, "live"))


def rows(
    session_id: str = "ses_1", count: int = 3, *, workflow: str = "pay", date: str = "2026-05-01"
) -> pa.Table:
    """Return event rows of one session, in no order."""
    made = [
        {
            "workflow": workflow,
            "date": date,
            "bucket": compute_hash_bucket(session_id),
            "session_id": session_id,
            "event_id": f"evt_{seq}",
            "seq": seq,
            "t_ms": seq * 10,
            "ts": seq * 10_000,
            "type": "click",
            "frame_id": None,
            "frame_seq": None,
            "is_action": True,
            "payload": "{}",
        }
        for seq in reversed(range(count))
    ]
    return pa.Table.from_pylist(made, LAYOUTS["events"].schema)


def append(lake: Lake, number: int, *, session_id: str | None = None, lane: str = "lane") -> bool:
    """Append one batch, of a session named after its number."""
    return lake.append(*PLACE, rows(session_id or f"ses_{number}"), lane=lane, number=number)


def counts(lake: Lake) -> dict[str, int]:
    """Return the rows of each session."""
    counted = lake.scan(*PLACE).collect().group_by("session_id").len()
    return dict(counted.iter_rows())


@pytest.mark.parametrize("name", ["My Data", "späte Läufe", "100%", "#1?"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    lake = Lake(str(tmp_path / name))
    append(lake, 1)
    append(lake, 2)
    assert counts(lake) == {"ses_1": 3, "ses_2": 3}
    assert lake.scan(*PLACE, version=1).collect().height == 3


def test_a_table_made_by_an_earlier_release_gets_the_columns_that_came_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, now = Lake(str(tmp_path)), LAYOUTS["events"]
    before = pa.schema([field for field in now.schema if field.name != "frame_id"])
    with monkeypatch.context() as patch:
        patch.setitem(LAYOUTS, "events", replace(now, schema=before))
        Lake(str(tmp_path)).append(*PLACE, rows("ses_1"), lane="lane", number=1)
    assert frame_ids(lake) == {"ses_1": None}
    since = rows("ses_2").set_column(now.schema.names.index("frame_id"), "frame_id", pa.array(["frm_1"] * 3))
    assert lake.append(*PLACE, since, lane="lane", number=2)
    assert not lake.append(*PLACE, since, lane="lane", number=2)
    assert frame_ids(lake) == {"ses_1": None, "ses_2": "frm_1"}
    assert frame_ids(lake, version=1) == {"ses_1": None}


def frame_ids(lake: Lake, version: int | None = None) -> dict[str, str | None]:
    """Return the `frame_id` of each session's rows."""
    pairs = lake.scan(*PLACE, version=version).select("session_id", "frame_id").unique()
    return dict(pairs.collect().iter_rows())


def test_an_empty_lake_reads_as_no_rows(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    assert lake.scan("events", Tenant(WORKSPACE, "live")).collect().is_empty()
    assert lake.version("events", Tenant(WORKSPACE, "live")) is None
    assert lake.compact("events", Tenant(WORKSPACE, "live")) == 0


def test_a_number_is_taken_once(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    assert [append(lake, number) for number in (1, 1, 2, 2, 3)] == [True, False, True, False, True]
    assert counts(Lake(str(tmp_path))) == {"ses_1": 3, "ses_2": 3, "ses_3": 3}


def test_a_number_below_the_last_is_refused(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    append(lake, 1)
    append(lake, 2)
    with pytest.raises(LakeAhead):
        append(lake, 1)
    assert counts(lake) == {"ses_1": 3, "ses_2": 3}


def test_a_batch_without_rows_takes_its_number_too(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    empty = rows(count=0)
    assert lake.append("events", Tenant(WORKSPACE, "live"), empty, lane="lane", number=1)
    assert not append(lake, 1)
    assert append(lake, 2)


def test_lanes_number_apart(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    assert append(lake, 5, lane="one") and append(lake, 1, lane="two", session_id="ses_two")
    assert counts(lake) == {"ses_5": 3, "ses_two": 3}


def test_modes_and_workspaces_lie_apart(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.append("events", Tenant(WORKSPACE, "test"), rows(), lane="lane", number=1)
    lake.append("events", Tenant("wsp_b", "live"), rows(), lane="lane", number=1)
    assert counts(lake) == {}


def test_a_session_is_read_in_order_and_alone(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    table = pa.concat_tables([rows("ses_1", 50), rows("ses_2"), rows("ses_1", 2, workflow="ship")])
    lake.append("events", Tenant(WORKSPACE, "live"), table, lane="lane", number=1)
    stored = lake.read_session(
        "events", Tenant(WORKSPACE, "live"), workflow="pay", date="2026-05-01", session_id="ses_1"
    )
    assert stored["seq"].to_list() == list(range(50))


def test_files_are_sorted_so_that_readers_skip(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    table = pa.concat_tables([rows(f"ses_{number}") for number in range(20)])
    lake.append("events", Tenant(WORKSPACE, "live"), table, lane="lane", number=1)
    (file,) = (tmp_path / WORKSPACE / "live" / "events").glob("workflow=pay/date=2026-05-01/*.parquet")
    stored = pl.read_parquet(
        file, columns=["bucket", "session_id", "t_ms", "event_id"], hive_partitioning=False
    )
    assert stored.rows() == sorted(stored.rows())


def test_a_pinned_version_does_not_grow(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    append(lake, 1)
    version = lake.version("events", Tenant(WORKSPACE, "live"))
    append(lake, 2)
    pinned = lake.scan("events", Tenant(WORKSPACE, "live"), version=version).collect()
    assert pinned["session_id"].unique().to_list() == ["ses_1"]


def test_payloads_stand_in_no_statistic_of_the_log(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    table = rows().set_column(12, "payload", pa.array(['{"secret":"canary"}'] * 3))
    lake.append(
        "events", Tenant(WORKSPACE, "live"), table.cast(LAYOUTS["events"].schema), lane="lane", number=1
    )
    log = b"".join(path.read_bytes() for path in tmp_path.rglob("_delta_log/*") if path.is_file())
    assert b"session_id" in log and b"canary" not in log


def test_compaction_keeps_every_row_and_every_number(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    for number in range(1, 101):
        append(lake, number)
    before = lake.scan("events", Tenant(WORKSPACE, "live")).collect().sort("session_id", "seq")
    assert lake.compact("events", Tenant(WORKSPACE, "live")) == 100
    after = lake.scan("events", Tenant(WORKSPACE, "live")).collect().sort("session_id", "seq")
    assert after.equals(before) and not append(lake, 100) and append(lake, 101)


# The lake's library does not survive a fork.
SPAWN = multiprocessing.get_context("spawn")


def race(workers: str, folder: Path) -> list[tuple[int, bool]]:
    """Let three workers append numbers 1 to 12 in order, all at once; return the answers of all."""
    start: Callable[..., Any] = threading.Thread if workers == "threads" else SPAWN.Process
    barrier: Any = threading.Barrier(3) if workers == "threads" else SPAWN.Barrier(3)
    results: Any = SPAWN.Queue()
    running = [start(target=append_all, args=(str(folder), barrier, results)) for _ in range(3)]
    for worker in running:
        worker.start()
    answers = [results.get(timeout=60) for _ in running]
    for worker in running:
        worker.join()
    results.close()
    return [item for part in answers for item in part]


def append_all(folder: str, barrier: Any, results: Any) -> None:
    """Append the numbers as one worker of a race."""
    lake = Lake(folder)
    barrier.wait(timeout=60)
    answers = []
    for number in range(1, 13):
        try:
            answers.append((number, append(lake, number)))
        except LakeAhead:
            answers.append((number, False))
    results.put(answers)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_racing_writers_add_each_number_once(tmp_path: Path, workers: str) -> None:
    answers = race(workers, tmp_path)
    taken = sorted(number for number, was_added in answers if was_added)
    assert counts(Lake(str(tmp_path))) == {f"ses_{number}": 3 for number in range(1, 13)}
    assert taken == list(range(1, 13)) and len(answers) == 36


def test_a_lake_that_is_no_folder_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    lake = Lake(str(tmp_path / "file"))
    with pytest.raises(Unavailable):
        lake.ping()
    with pytest.raises(Unavailable):
        append(lake, 1)


def test_processes_may_ping_at_the_same_time(tmp_path: Path) -> None:
    lakes = [Lake(str(tmp_path)) for _ in range(8)]
    with ThreadPoolExecutor(len(lakes)) as threads:
        for _ in range(200):
            list(threads.map(Lake.ping, lakes))


def test_ping_leaves_nothing_behind(tmp_path: Path) -> None:
    Lake(str(tmp_path)).ping()
    assert list(tmp_path.iterdir()) == []


def test_statistics_of_a_file_are_those_of_all_its_row_groups() -> None:
    schema = pa.schema([("bucket", pa.int64()), ("t_ms", pa.int64())])
    columns = {"bucket": [1, 1, 2, 2, 3], "t_ms": [50, 60, 10, 90, 20]}
    layout = TableLayout(schema, ("bucket",), "bucket,t_ms", row_group_rows=2)
    file = write_lake_file(
        pa.BufferOutputStream(), [pa.record_batch(columns, schema)], layout, {}, "a.parquet"
    )
    statistics = orjson.loads(file.statistics)
    assert statistics["minValues"] == {"bucket": 1, "t_ms": 10}
    assert statistics["maxValues"] == {"bucket": 3, "t_ms": 90}
