"""Runs of purges one after the other: one process has imported them, each life is a child that works.

`python -m tests.faults.purge_launcher DATA_DIR DATABASE_URL LEASE_MS` starts a life for each line, once the
one before it has ended; its process id is written to stdout, and `ended` when no purge is open any more.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from recorder.exports.planning import plan
from recorder.governance.purging.purge_runs import run_purges
from recorder.storage.leases import LeaseLost
from tests.faults.export_launcher import SHARD_BYTES
from tests.support.forked_lives import live_in_turns
from tests.support.purges import make_due, open_purges
from tests.support.sealed_sessions import make_runtime


def live() -> None:
    """Work on purges until none is open; the lease of the life before is waited for."""
    plan.SHARD_BYTES = SHARD_BYTES
    runtime = make_runtime(Path(sys.argv[1]), database_url=sys.argv[2])
    while open_purges(runtime):
        make_due(runtime)
        with suppress(LeaseLost):  # on a busy machine it may run out
            if run_purges(runtime, f"life-{os.getpid()}", lease_ms=int(sys.argv[3])) is None:
                time.sleep(0.02)
    os.write(1, b"ended\n")


if __name__ == "__main__":
    live_in_turns(lambda _: live())
