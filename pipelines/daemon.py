"""Dagster's daemon as `recorder up` runs it: frequent heartbeats, and a pulse file that follows them.

`python -m pipelines.daemon --workspace FILE --pulse FILE`. Dagster's own command sends a heartbeat every
thirty seconds and takes no other interval; a supervisor that waits thirty seconds for an answer needs more.
"""

import argparse
import logging
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import SqliteScheduleStorage, sqlite_schedule_storage
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._daemon.controller import daemon_controller_from_instance
from dagster._utils.interrupts import capture_interrupts, setup_interrupt_handlers
from sqlalchemy import Engine, create_engine, event

from recorder.heartbeat import write_heartbeat

HEARTBEAT_S = 5
#: Daemons whose heartbeats the pulse follows. The scheduler sleeps for a minute between two heartbeats and
#: the backfill daemon for half of one, whatever the interval (measured: 58 s, 30 s; these two at most 8 s).
WATCHED = ("SENSOR", "QUEUED_RUN_COORDINATOR")
_LOOK_S = 2.5

log = logging.getLogger("recorder.daemon")


def reduce_daemon_sqlite_work() -> None:
    """Let Dagster's SQLite storages do less for each tick of a sensor; Dagster has no settings for it.

    They make an engine and a connection for each statement. So a tick compiles a dozen statements again, and
    opens the files as often: this was half of the CPU time of an idle service. A seventh of the daemon's
    remaining time was the look-up of a table that the schedules' file is created with, and syncs of ticks.
    """
    for storage in (sqlite_schedule_storage, sqlite_run_storage):
        vars(storage)["create_engine"] = lru_cache(_create_pooled_engine)
    SqliteScheduleStorage._has_instigators_table = lambda *_: True  # type: ignore[method-assign]


def _create_pooled_engine(url: str, **_: Any) -> Engine:
    """Create an engine with SQLAlchemy's default pool, whatever pool the other arguments ask for."""
    engine = create_engine(url)
    if Path(engine.url.database or "").name == "schedules.db":
        # A power cut may take the last ticks; the next ones look at the runs that exist.
        event.listen(engine, "connect", lambda each, _: each.execute("PRAGMA synchronous=NORMAL"))
    return engine


def run_dagster_daemon(workspace: Path, pulse: Path) -> None:
    """Run sensors, schedules and the run queue until SIGINT or SIGTERM."""
    setup_interrupt_handlers()
    reduce_daemon_sqlite_work()
    over = threading.Event()
    try:
        with capture_interrupts(), dg.DagsterInstance.get() as instance:
            follower = threading.Thread(
                target=copy_daemon_heartbeats, args=(instance, pulse, over), name="pulse", daemon=True
            )
            with daemon_controller_from_instance(
                instance,
                workspace_load_target=WorkspaceFileTarget(paths=[str(workspace)]),
                heartbeat_interval_seconds=HEARTBEAT_S,
                log_level="warning",
                code_server_log_level="warning",
            ) as controller:
                follower.start()
                controller.check_daemon_loop()
    except KeyboardInterrupt:
        return
    finally:
        over.set()


def copy_daemon_heartbeats(instance: dg.DagsterInstance, pulse: Path, over: threading.Event) -> None:
    """Write the pulse file each time that the slower of the watched daemons has sent a new heartbeat."""
    last = read_slowest_daemon_heartbeat(instance)
    while not over.wait(_LOOK_S):
        try:
            slowest = read_slowest_daemon_heartbeat(instance)
        except Exception:  # the storage is away: no beat, and the next look may succeed
            log.exception("heartbeats cannot be read")
            continue
        if slowest != last:
            last = slowest
            write_heartbeat(pulse)


def read_slowest_daemon_heartbeat(instance: dg.DagsterInstance) -> float | None:
    """Return the older of the watched daemons' last heartbeats; None while one never sent any."""
    heartbeats = instance.get_daemon_heartbeats()
    if any(kind not in heartbeats for kind in WATCHED):
        return None
    return min(heartbeats[kind].timestamp for kind in WATCHED)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="Dagster's daemon with a pulse file.")
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--pulse", type=Path, required=True)
    arguments = parser.parse_args()
    run_dagster_daemon(arguments.workspace, arguments.pulse)


if __name__ == "__main__":
    main()
