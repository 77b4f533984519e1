"""kill -9 of a rewrite of the lake beside a writer: no row is lost or doubled, no deleted one comes back.

A life deletes sessions, compacts, deletes old files and cleans the log; the next one does what it left.
`RECORDER_FAULT_LAKE_KILLS` gives the number of kills; `make test-faults` does a few. The moments follow
`RECORDER_FAULT_SEED`, which a failure names.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recorder.storage.lake import Lake
from recorder.storage.lake_tables import LakeAhead
from tests.faults.lake_launcher import rewrite
from tests.faults.results import add_result, count_done
from tests.faults.test_export_kills import SEED, lives_of
from tests.storage.test_lake import PLACE, append, counts, rows
from tests.storage.test_lake_durability import PARTITIONS
from tests.storage.test_lake_maintenance import files_on_disk, live_files
from tests.support.deployment_processes import ROOT

KILLS = int(os.environ.get("RECORDER_FAULT_LAKE_KILLS", "6"))  # noqa: TID251
#: Then a rewrite is left in peace, beside the writer.
_KILLS_OF_ONE = 3
_SESSIONS = 12
_ROWS = 2_000
_PATIENCE_S = 60.0
_TWO_DAYS_S = 2 * 86_400


def test_a_killed_rewrite_is_ended_by_the_next_one_beside_a_writer(tmp_path: Path) -> None:
    done = count_done("lake kills")
    missing = max(KILLS - done, 0)
    chance = random.Random(SEED + done)
    lake, acknowledged = Lake(str(tmp_path / "lake")), tmp_path / "acknowledged"
    acknowledged.touch()
    kills, number, whole, slowest = 0, 0, 0.5, 0.0
    first: list[str] = []
    with writer(lake.url, acknowledged), lives_of(tmp_path / "lake", "", launcher="lake_launcher") as lives:
        while kills < missing:
            number += 1
            kept, gone = add_sessions(lake, number)
            first += kept
            for left in range(min(missing - kills, _KILLS_OF_ONE), -1, -1):
                life, began = lives.start(" ".join(gone)), time.monotonic()
                if lives.ends_within(chance.uniform(0, 1.1 * whole) if left else _PATIENCE_S):
                    whole = time.monotonic() - began
                    slowest = max(slowest, whole)
                    break
                assert left, f"seed {SEED}: no rewrite ends beside the writer"
                os.kill(life, signal.SIGKILL)
                kills += 1
                require_rows(lake, acknowledged, first, gone, are_gone=False)
            require_rows(lake, acknowledged, first, gone, are_gone=True)
            assert not {*gone} & ids_on_disk(lake), f"seed {SEED}: a file holds rows of deleted sessions"
    require_nothing_left(lake)
    batches = count_batches(acknowledged)
    print(f"{kills} kills, {number} rewrites, the slowest {slowest:.1f} s, {batches} batches")
    add_result("lake kills", kills, seed=SEED, rewrites=number)


@contextmanager
def writer(folder: str, acknowledged: Path) -> Iterator[None]:
    """Yield a process that adds batches all the time, and is killed at the end."""
    command = [sys.executable, "-m", "tests.faults.lake_launcher", folder, "writer", str(acknowledged)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            began = time.monotonic()
            while not count_batches(acknowledged):
                assert process.poll() is None and time.monotonic() - began < _PATIENCE_S
                time.sleep(0.05)
            yield
            assert process.poll() is None, "the writer failed"
        finally:
            process.kill()


def add_sessions(lake: Lake, number: int) -> tuple[list[str], list[str]]:
    """Add sessions in files of two each; gives those that are kept, and those to delete."""
    ids = [f"ses_r{number}n{each}" for each in range(_SESSIONS)]
    for batch, start in enumerate(range(0, _SESSIONS, 2), start=(number - 1) * _SESSIONS + 1):
        both = pa.concat_tables([rows(session_id, _ROWS) for session_id in ids[start : start + 2]])
        assert lake.append(*PLACE, both, lane="sessions", number=batch)
    return ids[::2], ids[1::2]


def count_batches(acknowledged: Path) -> int:
    """Return the number of the writer's batches."""
    return len(acknowledged.read_text().split())


def require_rows(lake: Lake, acknowledged: Path, kept: list[str], gone: list[str], *, are_gone: bool) -> None:
    """Require each row once, and none of the deleted sessions once their deletion ended."""
    batches = acknowledged.read_text().split()
    stored = counts(Lake(lake.url))
    wanted = dict.fromkeys(batches, 3) | dict.fromkeys(kept, _ROWS)
    wrong = {each: stored.get(each, 0) for each, count in wanted.items() if stored.get(each, 0) != count}
    assert not wrong, f"seed {SEED}: {wrong}"
    others = {each: count for each, count in stored.items() if each not in wanted}
    # What the writer added since; its last batch may not be acknowledged yet.
    later = {each for each in others if each.startswith("ses_w")}
    assert all(others[each] == 3 for each in later), f"seed {SEED}: {others}"
    left = others.keys() - later
    assert left <= (set() if are_gone else {*gone}), f"seed {SEED}: {left} came back"
    assert all(others[each] == _ROWS for each in left), f"seed {SEED}: {others}"


def ids_on_disk(lake: Lake) -> set[str]:
    """Return sessions of all complete data files, in use or not."""
    ids: set[str] = set()
    for path in files_on_disk(lake):
        try:
            ids.update(pq.ParquetFile(path).read(columns=["session_id"])["session_id"].to_pylist())
        except (pa.ArrowInvalid, FileNotFoundError):
            continue  # cut off by a kill, or deleted since
    return ids


def require_nothing_left(lake: Lake) -> None:
    """Require that old files of killed runs are gone, those that were cut off too."""
    old_s = time.time() - _TWO_DAYS_S
    for path in files_on_disk(lake):
        os.utime(path, (old_s, old_s))
    before = counts(lake)
    rewrite(Lake(lake.url), ["ses_none"])
    lake.delete_dead_files(*PLACE, **PARTITIONS, session_ids=["ses_none"])
    assert files_on_disk(lake) == live_files(lake), f"seed {SEED}"
    assert counts(lake) == before
    # The numbers of batches outlived all cleanups of the log.
    with pytest.raises(LakeAhead):
        append(lake, 1, lane="writer")
