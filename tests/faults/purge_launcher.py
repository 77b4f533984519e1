"""Runs of purges, erasures or retention one after the other: one process has imported them for all lives.

`python -m tests.faults.purge_launcher DATA_DIR DATABASE_URL LEASE_MS` starts a life for each line, once the
one before it has ended; its process id is written to stdout, and `ended` when the work that the line names is
done: nothing for open purges, `erasure` for open erasures, `retention AT` for what is due at an instant.
"""

import os
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from sqlmodel import select

from recorder.exports.planning import plan
from recorder.governance.erasure_runs import open_erasure_run
from recorder.governance.purging.purge_runs import run_purges
from recorder.governance.retention import run_retention
from recorder.governance.table_rewrites import rewrite_tables
from recorder.models.governance import ErasureRow
from recorder.runtime import Runtime
from recorder.storage.leases import LeaseLost
from tests.faults.export_launcher import SHARD_BYTES
from tests.support.forked_restarts import live_in_turns
from tests.support.purges import make_due, open_purges
from tests.support.recorded_sessions import let_lease_run_out
from tests.support.sealed_sessions import make_runtime


def live(line: str) -> None:
    """Do the work that a line names until nothing is left of it."""
    plan.SHARD_BYTES = SHARD_BYTES
    runtime = make_runtime(Path(sys.argv[1]), database_url=sys.argv[2])
    work, _, at = line.partition(" ")
    if work:
        # The life before is dead, and some leases of its work are as long as in a deployment.
        let_lease_run_out(runtime)
    if work == "erasure":
        end_erasures(runtime, int(sys.argv[3]))
    elif work == "retention":
        report = run_retention(runtime, f"life-{os.getpid()}", at=datetime.fromisoformat(at))
        assert report is not None and not report.failures, report
    end_purges(runtime, int(sys.argv[3]))
    os.write(1, b"ended\n")


def end_purges(runtime: Runtime, lease_ms: int) -> None:
    """Work on purges until none is open; the lease of the life before is waited for."""
    while open_purges(runtime):
        make_due(runtime)
        with suppress(LeaseLost):  # on a busy machine it may run out
            if run_purges(runtime, f"life-{os.getpid()}", lease_ms=lease_ms) is None:
                time.sleep(0.02)


def end_erasures(runtime: Runtime, lease_ms: int) -> None:
    """Search, purge and rewrite tables until no erasure is open."""
    while has_open_erasures(runtime):
        make_due(runtime)
        with open_erasure_run(runtime, f"life-{os.getpid()}") as run:
            assert run is not None
            while run.search_next_range():
                pass
            run.end_erasures()
            assert not run.errors, run.errors
        end_purges(runtime, lease_ms)
        rewrite_tables(runtime, f"life-{os.getpid()}")


def has_open_erasures(runtime: Runtime) -> bool:
    """Return whether an erasure has not ended."""
    with runtime.database.transaction(write=False) as db:
        return db.exec(select(ErasureRow.id)).first() is not None


if __name__ == "__main__":
    live_in_turns(live)
