"""A process that purges, compacts and vacuums until its standard input ends.

Its arguments are those of a sealing run: FOLDER, URL, OWNER, LEASE_S and RUNS, which is not used. Nothing
waits here: each step of a purge is due at once, tables are compacted from a few files on, and what no version
needs is deleted.
"""

import sys
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from recorder.errors import Unavailable
from recorder.governance.maintenance_pass import maintain_lake
from recorder.governance.purging.purge_runs import run_purges
from recorder.runtime import Runtime
from recorder.storage.lake import Lake
from recorder.storage.lake_maintenance import LakeTimes
from recorder.storage.leases import LeaseLost
from tests.support.purges import make_due
from tests.support.sealed_sessions import make_runtime

_PAUSE_S = 0.2
_TIMES = LakeTimes(
    removed_files=timedelta(0),
    versions=timedelta(0),
    log_entries=timedelta(0),
    open_partitions=timedelta(days=-2),
)


def main(folder: str, database_url: str, owner: str, lease_s: str, _: str) -> None:
    """Maintain until standard input ends."""
    runtime = open_hasty_runtime(Path(folder), database_url)
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    while not ended.wait(_PAUSE_S):
        make_due(runtime)
        with suppress(LeaseLost, Unavailable):  # a machine that is busy, or a store; the next round goes on
            run_purges(runtime, owner, longest_s=2, lease_ms=int(float(lease_s) * 1000))
        maintain_lake(runtime, owner, is_stopping=ended.is_set, lease_ms=int(float(lease_s) * 1000))
    runtime.close()


def open_hasty_runtime(folder: Path, database_url: str) -> Runtime:
    """Open a deployment whose lake joins few files, and keeps nothing for others."""
    runtime = make_runtime(folder, database_url=database_url)
    return replace(
        runtime, lake=Lake(runtime.lake.url, compact_at_files=5, checkpoint_every=10, times=_TIMES)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
