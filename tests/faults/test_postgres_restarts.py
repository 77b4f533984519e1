"""PostgreSQL is ended and starts again, under recordings and purges: nothing acknowledged is lost.

`RECORDER_FAULT_POSTGRES_RESTARTS` gives the number of restarts; `make test-faults` does a few.
"""

import os
import pwd
import random
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from recorder.errors import Unavailable
from recorder.governance.purging.purge_runs import run_purges
from recorder.runtime import Runtime
from recorder.storage.leases import LeaseLost
from tests.conftest import running_postgres
from tests.faults.results import add_result, count_done
from tests.faults.test_export_kills import SEED
from tests.support.databases import create_database
from tests.support.purges import make_due, open_purges
from tests.support.recorded_sessions import open_desk, session_row
from tests.support.rewritten_exports import hide_for_purge
from tests.support.sealed_sessions import Recording, make_runtime, seal

RESTARTS = int(os.environ.get("RECORDER_FAULT_POSTGRES_RESTARTS", "3"))  # noqa: TID251
_EVENTS = 5
_SESSIONS = 30
_PATIENCE_S = 120.0
_AWAY = (Unavailable, LeaseLost)


# A server that is gone closes no cursor.
@pytest.mark.filterwarnings("ignore:<psycopg.ServerCursor:ResourceWarning")
def test_nothing_acknowledged_is_lost_when_postgresql_restarts(tmp_path: Path) -> None:
    missing = max(RESTARTS - count_done("PostgreSQL restarts"), 0)
    chance = random.Random(SEED)
    is_over = threading.Event()
    with running_postgres() as cluster:
        with psycopg.connect(f"{cluster}/postgres") as connection:
            data = Path(str(connection.execute("SHOW data_directory").fetchall()[0][0]))
        runtime = make_runtime(tmp_path, database_url=create_database(cluster))
        try:
            gone = seal(runtime, [Recording(frames=[0]) for _ in range(_SESSIONS)])
            for session_id in gone:
                hide_for_purge(runtime, session_id)
            with ThreadPoolExecutor(2) as pool:
                recorded = pool.submit(record, runtime, is_over)
                purges = pool.submit(purge, runtime)
                for _ in range(missing):
                    time.sleep(chance.uniform(0.1, 1.0))
                    restart(data)
                is_over.set()
                acknowledged = recorded.result()
                purges.result()
            for session_id in acknowledged:
                row = session_row(runtime, session_id)
                assert (row.event_count, row.status) == (_EVENTS, "stopped"), f"seed {SEED}: {session_id}"
            tables = [runtime.lake.scan(kind, row.tenant) for kind in ("events", "sessions")]
            for table in tables:
                assert not {*gone} & {*table.collect()["session_id"]}, f"seed {SEED}"
        finally:
            runtime.close()
    assert acknowledged
    print(f"{missing} restarts, {len(acknowledged)} sessions acknowledged")
    add_result("PostgreSQL restarts", missing, seed=SEED, acknowledged=len(acknowledged))


def record(runtime: Runtime, is_over: threading.Event) -> list[str]:
    """Record sessions; return those whose writes were all acknowledged."""
    acknowledged: list[str] = []
    events = [{"t_ms": number, "type": "click"} for number in range(_EVENTS)]
    with open_desk(runtime) as desk:
        while not is_over.is_set() or not acknowledged:
            with suppress(Unavailable):
                acknowledged.append(desk.record(events=events))
    return acknowledged


def purge(runtime: Runtime) -> None:
    """Work on purges until none is open."""
    until = time.monotonic() + _PATIENCE_S
    is_open = True
    while is_open:
        assert time.monotonic() < until, f"seed {SEED}: purges do not end"
        with suppress(*_AWAY):
            make_due(runtime)
            run_purges(runtime, "tests")
            is_open = bool(open_purges(runtime))


def restart(data: Path) -> None:
    """End the server without warning, and start it again."""
    main = int((data / "postmaster.pid").read_text().split()[0])
    pg_ctl = Path(f"/proc/{main}/exe").resolve().with_name("pg_ctl")
    subprocess.run(
        [pg_ctl, "restart", "-m", "immediate", "-w", "-D", data, "-l", data.parent / "log"],
        user=pwd.getpwuid(data.stat().st_uid).pw_name if os.geteuid() == 0 else None,
        cwd="/",
        check=True,
        stdout=subprocess.DEVNULL,
    )
