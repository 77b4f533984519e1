"""Runs of exports one after the other: one process has imported them, each life is a child that works.

`python -m tests.faults.export_launcher DATA_DIR DATABASE_URL LEASE_MS` reads export ids, one a line. Each
starts a life, once the one before it has ended; its process id is written to stdout, and `ended` when it
brought the export to its end.
"""

import os
import sys
import time
from pathlib import Path

from recorder.exports.planning import plan
from recorder.exports.runner.export_lease import ExportBusy
from recorder.exports.runner.run import run_export
from tests.support.forked_restarts import live_in_turns
from tests.support.sealed_sessions import make_runtime

#: So small that some sessions make many shards.
SHARD_BYTES = 30_000


def live(export_id: str) -> None:
    """Work on an export until it is at its end; the lease of the life before is waited for."""
    plan.SHARD_BYTES = SHARD_BYTES
    runtime = make_runtime(Path(sys.argv[1]), database_url=sys.argv[2])
    while True:
        try:
            run_export(runtime, export_id, owner=f"life-{os.getpid()}", lease_ms=int(sys.argv[3]))
        except ExportBusy:
            time.sleep(0.02)
        else:
            break
    os.write(1, b"ended\n")


if __name__ == "__main__":
    live_in_turns(live)
