"""Removals of Dagster's records one after the other: one process has imported Dagster, each life is a child.

`python -m tests.faults.records_launcher HOME` starts a life for each line, once the one before it has ended.
Its process id is written to stdout, and `ended` when it removed and rewrote everything.
"""

import os
import sys
from datetime import timedelta

import dagster as dg

from pipelines.dagster_record_removal import remove_records
from pipelines.dagster_table_rewrites import rewrite_dagster_databases
from recorder import clock
from tests.support.forked_restarts import live_in_turns


def live(home: str) -> None:
    """Delete the runs but those that pages show, and remove the texts of these."""
    with dg.DagsterInstance.from_config(home) as instance:
        later = clock.now() + timedelta(seconds=5)
        report = remove_records(instance, remove_before=later, strip_before=later, longest_s=60.0)
        _, failures = rewrite_dagster_databases(instance)
        assert report.failures + failures == []
    os.write(1, b"ended\n")


if __name__ == "__main__":
    live_in_turns(lambda _: live(sys.argv[1]))
