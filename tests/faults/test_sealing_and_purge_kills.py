"""kill -9 of racing sealing runs and of the maintenance lane, while sessions are deleted at all stages.

Sessions are recorded, sealed, deleted softly and for good, purged, compacted and vacuumed at the same time:
none is lost or sealed twice, and no deleted one comes back. `RECORDER_FAULT_SEAL_KILLS` is the number of
kills, `RECORDER_FAULT_SEAL_RUNS` that of the racing runs and `RECORDER_FAULT_SEAL_SESSIONS` that of sessions
for each. The moments follow `RECORDER_FAULT_SEED`, which a failure names.
"""

import os
import random
import threading
import time
from itertools import product
from pathlib import Path

from sqlmodel import col, select

from recorder.access.keys import Caller
from recorder.audit.log import Origin
from recorder.governance.session_deletion import delete_session_for_good, delete_session_softly
from recorder.ids import new_id
from recorder.memory.storage.consistency import check_graph_consistency
from recorder.models.memory import SessionPathRow
from recorder.models.session import SessionRow
from recorder.models.tables import METADATA
from recorder.models.workflow import WorkflowRow
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from recorder.sealing.set_aside import list_sessions_set_aside
from recorder.storage.lake_schemas import LAYOUTS
from recorder.tenant import GraphScope, Tenant
from tests.faults.maintenance_launcher import open_hasty_runtime
from tests.faults.results import add_result, count_done
from tests.faults.sealing_runs import SealingRun
from tests.faults.test_sealing_kills import SEED, WORKSPACES, Recording
from tests.support.purges import finish_purges, open_purges
from tests.support.recorded_sessions import assert_sealed_exactly_once, let_lease_run_out, session_row
from tests.support.sealed_sessions import START, make_runtime
from tests.support.waiting import wait_for

KILLS = int(os.environ.get("RECORDER_FAULT_SEAL_KILLS", "2"))  # noqa: TID251
RUNS = int(os.environ.get("RECORDER_FAULT_SEAL_RUNS", "3"))  # noqa: TID251
SESSIONS = int(os.environ.get("RECORDER_FAULT_SEAL_SESSIONS", "10"))  # noqa: TID251
_PATIENCE_S = 600.0
_LEASE_S = 2.0


class Deleting:
    """Deletes sessions at all stages for as long as the block runs, every other one for good."""

    def __init__(self, runtime: Runtime, session_ids: list[str]) -> None:
        self.soft: list[str] = []
        self.hard: list[str] = []
        self._runtime, self._session_ids = runtime, session_ids
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._delete)

    def __enter__(self) -> "Deleting":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _delete(self) -> None:
        rng = random.Random(SEED)
        while not self._ended.wait(0.3):
            # The newest are not sealed yet, the oldest are; those in between are being sealed.
            left = [key for key in self._session_ids if key not in {*self.soft, *self.hard}]
            if len(left) > len(self._session_ids) // 2:
                session_id = left[int(rng.triangular(0, len(left), len(left)))]
                is_for_good = len(self.hard) <= len(self.soft)
                delete_one(self._runtime, session_id, for_good=is_for_good)
                (self.hard if is_for_good else self.soft).append(session_id)


def delete_one(runtime: Runtime, session_id: str, *, for_good: bool) -> None:
    """Delete a session as a key of its workspace does."""
    tenant = session_row(runtime, session_id).tenant
    origin = Origin(tenant.workspace_id, "key", new_id("key"))
    if for_good:
        delete_session_for_good(runtime, origin, Caller(tenant, new_id("key")), session_id)
    else:
        delete_session_softly(runtime, origin, tenant, session_id)


def test_deletes_and_maintenance_among_killed_racing_runs_lose_and_bring_back_nothing(
    database_url: str, tmp_path: Path
) -> None:
    runtime = make_runtime(tmp_path, database_url=database_url)
    name = f"sealing and purge kills on {'SQLite' if runtime.database.is_sqlite else 'PostgreSQL'}"
    done = count_done(name)
    rng = random.Random(SEED + done)
    with runtime.database.transaction(write=True) as db:
        for workspace_id in WORKSPACES:
            db.add(WorkspaceRow(id=workspace_id, name=workspace_id, region="us", created_at=START))
    runs = [SealingRun(tmp_path, database_url, n, lease_s=_LEASE_S, runs=RUNS) for n in range(RUNS)]
    lane = "tests.faults.maintenance_launcher"
    runs.append(SealingRun(tmp_path, database_url, RUNS, lease_s=_LEASE_S, module=lane))
    for run in runs:
        run.start()
    try:
        with Recording(runtime) as recording, Deleting(runtime, recording.session_ids) as deleting:
            for _ in range(max(KILLS - done, 0)):
                time.sleep(rng.uniform(0.2, 2.5))
                run = rng.choice(runs)
                run.kill()
                run.start()
            wait_for(lambda: len(recording.session_ids) >= RUNS * SESSIONS, seconds=_PATIENCE_S)
        kept = [key for key in recording.session_ids if key not in {*deleting.soft, *deleting.hard}]
        wait_for(lambda: all_sealed(runtime, kept) and not open_purges(runtime), seconds=_PATIENCE_S)
    finally:
        for run in runs:
            run.stop()
    require_nothing_lost(runtime, kept)
    require_nothing_back(runtime, kept, deleting)
    # One more round, of a lane that was never killed, changes nothing.
    let_lease_run_out(runtime)
    hasty = open_hasty_runtime(tmp_path, database_url)
    finish_purges(hasty)
    require_nothing_lost(runtime, kept)
    hasty.close()
    runtime.close()
    print(f"{len(kept)} sessions kept, {len(deleting.hard)} deleted for good, {len(deleting.soft)} hidden")
    add_result(name, max(KILLS - done, 0), seed=SEED, sessions=len(recording.session_ids))


def all_sealed(runtime: Runtime, session_ids: list[str]) -> bool:
    """Return whether sessions are all sealed."""
    with runtime.database.transaction(write=False) as db:
        waiting = select(SessionRow.id).where(
            col(SessionRow.id).in_(session_ids), SessionRow.status != "sealed"
        )
        return db.exec(waiting.limit(1)).first() is None


def require_nothing_lost(runtime: Runtime, kept: list[str]) -> None:
    """Require that sessions that were not deleted are sealed once, and counted once."""
    with runtime.database.transaction(write=False) as db:
        assert list_sessions_set_aside(db) == [], f"RECORDER_FAULT_SEED={SEED}"
        sessions = db.exec(select(SessionRow).where(col(SessionRow.id).in_(kept))).all()
        of_kept = [(session.workspace_id, session.workflow) for session in sessions]
        for row in db.exec(select(WorkflowRow)):
            expected = of_kept.count((row.workspace_id, row.workflow))
            assert row.session_count == expected, f"RECORDER_FAULT_SEED={SEED}: {row.workflow}"
        for workspace_id, workflow in {*of_kept}:
            check = check_graph_consistency(db, GraphScope(Tenant(workspace_id, "live"), workflow))
            wrong = (check.off_path, check.missing, check.miscounted, check.unequal)
            assert wrong == ([], [], [], []), f"RECORDER_FAULT_SEED={SEED}: {check}"
            assert check.sessions == of_kept.count((workspace_id, workflow)), f"RECORDER_FAULT_SEED={SEED}"
    assert_sealed_exactly_once(runtime, kept)


def require_nothing_back(runtime: Runtime, kept: list[str], deleting: Deleting) -> None:
    """Require that no deleted session is in a list, in the graph, or, if for good, in tables and lake."""
    with runtime.database.transaction(write=False) as db:
        visible = select(SessionRow.id).where(col(SessionRow.deleted_at).is_(None))
        assert {*db.exec(visible)} == {*kept}, f"RECORDER_FAULT_SEED={SEED}"
        counted = select(SessionPathRow.session_id).where(col(SessionPathRow.removed_version).is_(None))
        assert {*db.exec(counted)} == {*kept}, f"RECORDER_FAULT_SEED={SEED}"
        for table in METADATA.sorted_tables:
            column = table.columns.get("id" if table.name == "sessions" else "session_id")
            if column is not None and table.name != "purges":
                rows = db.connection().execute(select(column).where(column.in_(deleting.hard))).all()
                assert rows == [], f"RECORDER_FAULT_SEED={SEED}: {table.name}"
    for workspace_id, kind in product(WORKSPACES, LAYOUTS):
        lake = runtime.lake.scan(kind, Tenant(workspace_id, "live")).select("session_id").collect()
        assert not {*lake["session_id"]} & {*deleting.hard}, f"RECORDER_FAULT_SEED={SEED}: {kind}"
    objects = [stored.key.split("/")[2] for stored in runtime.blobs.list_objects("frames/")]
    assert not {*objects} & {*deleting.hard}, f"RECORDER_FAULT_SEED={SEED}"
