"""Drain runs of dry replays one after the other: one process has imported them, each life is a child.

`python -m tests.faults.replays_launcher DATA_DIR DATABASE_URL LEASE_MS` starts a life for each line, once the
one before it has ended; its process id is written to stdout. A life waits, as the sensor does, until replays
are due, does what Dagster's run does, and writes `ended`. The database is the one below the data folder.
"""

import os
import sys
import time

import dagster as dg

from pipelines.replays import replays, request_replay_drain_run
from pipelines.resources import RecorderResource
from recorder.replay_service import replay_drain_run
from tests.support.forked_restarts import live_in_turns


def live() -> None:
    """Replay what waits, once no life before holds the lease."""
    replay_drain_run.LEASE_MS = int(sys.argv[3])
    recorder = RecorderResource(data_dir=sys.argv[1])
    with dg.DagsterInstance.ephemeral() as instance:
        while isinstance(request_replay_drain_run(lambda: instance, recorder), dg.SkipReason):
            time.sleep(0.1)
        config = {"ops": {"replays": {"config": {"idle_seconds": 0}}}}
        dg.materialize([replays], instance=instance, resources={"recorder": recorder}, run_config=config)
    os.write(1, b"ended\n")


if __name__ == "__main__":
    live_in_turns(lambda _: live())
