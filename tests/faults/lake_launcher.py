"""Runs that rewrite a table of the lake, one after the other, and a writer that adds batches all the time.

`python -m tests.faults.lake_launcher FOLDER` starts a life for each line, once the one before it has ended:
it deletes the sessions that the line names, compacts, and deletes what is not needed. Its process id is
written to stdout, and `ended` when all of it is done.

`python -m tests.faults.lake_launcher FOLDER writer ACKNOWLEDGED` adds sessions until it is killed; it writes
the name of each to a file.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TypeVar

from recorder.errors import Unavailable
from recorder.storage.lake import Lake
from recorder.storage.lake_maintenance import LakeTimes
from tests.storage.test_lake import PLACE, append
from tests.storage.test_lake_durability import PARTITIONS
from tests.support.forked_restarts import live_in_turns

_Result = TypeVar("_Result")


def open_lake(folder: str) -> Lake:
    """Return the lake with few files in a partition, and without the time that readers get."""
    times = LakeTimes(removed_files=timedelta(0), versions=timedelta(0), log_entries=timedelta(0))
    return Lake(folder, compact_at_files=5, checkpoint_every=10, times=times)


def repeat(work: Callable[[], _Result]) -> _Result:
    """Do some work, again where the lake did not answer, as runs do."""
    for _ in range(20):
        try:
            return work()
        except Unavailable:
            continue
    return work()


def rewrite(lake: Lake, session_ids: list[str]) -> None:
    """Delete sessions, and everything of them, in the order of a purge and of maintenance."""
    repeat(lambda: lake.delete_sessions(*PLACE, **PARTITIONS, session_ids=session_ids))
    repeat(lambda: lake.maintain(*PLACE))
    repeat(lambda: lake.delete_dead_files(*PLACE, **PARTITIONS, session_ids=session_ids))
    repeat(lambda: lake.clean_log(*PLACE))


def add_batches(folder: str, acknowledged: str) -> None:
    """Add batches until the process is killed."""
    lake = open_lake(folder)
    with Path(acknowledged).open("a", buffering=1) as lines:
        for number in count(1):
            if repeat(lambda: append(lake, number, session_id=f"ses_w{number}", lane="writer")):  # noqa: B023
                lines.write(f"ses_w{number}\n")


def live(session_ids: str) -> None:
    """Rewrite the table without the sessions that a line names."""
    rewrite(open_lake(sys.argv[1]), session_ids.split())
    os.write(1, b"ended\n")


if __name__ == "__main__":
    if sys.argv[2:3] == ["writer"]:
        add_batches(sys.argv[1], sys.argv[3])
    live_in_turns(live)
