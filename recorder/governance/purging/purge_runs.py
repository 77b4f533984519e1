"""Purge runs: one at a time under a lease; they remove hidden sessions from every store. Contract §2, §7.

The intent is a row, written in the transaction that hides the session. A run works on the steps under a
lease; every step may be repeated, so a run that was killed is continued by the next one. Lake rows are
deleted once no open batch names the session, and old files later, since readers may still open them.
"""

import math
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder import clock
from recorder.governance.purging.due_steps import DueStepWork
from recorder.governance.purging.purge_rows import advance_purges
from recorder.governance.purging.session_content import remove_session_contents
from recorder.governance.purging.step_report import DueStepReport
from recorder.models.governance import PurgeRow
from recorder.runtime import Runtime
from recorder.storage.leases import LeaseKeeper, lease_for_block

PURGE_LEASE = "purges"
#: A killed run is followed by another one after this time.
_LEASE_MS = 60_000
_BEATS_PER_LEASE = 4
_LONGEST_SLEEP_S = 1.0


def purge_session_at_once(runtime: Runtime, purge: PurgeRow) -> None:
    """Remove the rows and objects of a session now; a run does the rest.

    Raises:
        Unavailable: if a store or the database does not answer; a run tries again.
    """
    remove_session_contents(
        runtime,
        [purge],
        open_transaction=partial(runtime.database.transaction, write=True),
        on_removed=lambda db: advance_purges(db, [purge.session_id], from_step="content", to_step="lake"),
    )


def find_next_due_time(db: DbSession) -> datetime | None:
    """Return when the next step of a purge is due; None if no purge is open."""
    return db.exec(select(func.min(PurgeRow.due_at)).where(PurgeRow.step != "done")).one()


def run_purges(
    runtime: Runtime,
    owner: str,
    *,
    patience_s: float = 0.0,
    longest_s: float = math.inf,
    is_stopping: Callable[[], bool] = lambda: False,
    work_between: Callable[[], bool] = lambda: False,
    lease_ms: int = _LEASE_MS,
) -> DueStepReport | None:
    """Work on all steps that are due, and on those that become due while the run waits.

    Args:
        runtime: the deployment.
        owner: name of the run.
        patience_s: seconds to wait for the next step.
        longest_s: seconds after which no further round begins.
        is_stopping: whether to end before the next round.
        work_between: does a piece of other work after each round; it returns False if there was none.
        lease_ms: duration of the lease.

    Returns:
        The finished purges; None if another run holds the lease.

    Raises:
        LeaseLost: if another run took the lease.
        StoreAway: if a step is due and a store is away.
    """
    with lease_for_block(runtime.database, PURGE_LEASE, owner, ttl_ms=lease_ms) as held:
        if held is None:
            return None
        every_s = lease_ms / 1000 / _BEATS_PER_LEASE
        with LeaseKeeper(runtime.database, lambda: [held], every_s=every_s):
            run, ends_s = DueStepWork(runtime, held), time.monotonic() + longest_s
            while not is_stopping() and time.monotonic() < ends_s:
                has_worked = run.work_on_due_steps()
                has_worked = work_between() or has_worked
                if not has_worked and not _wait_for_step_in_purge_run(runtime, patience_s):
                    break
            return run.report


def _wait_for_step_in_purge_run(runtime: Runtime, patience_s: float) -> bool:
    """Wait a moment for the next step; return False if none becomes due within the patience."""
    with runtime.database.transaction(write=False) as db:
        due_at = find_next_due_time(db)
    left_s = None if due_at is None else (due_at - clock.now()).total_seconds()
    if left_s is None or left_s > patience_s:
        return False
    time.sleep(min(max(left_s, 0.0), _LONGEST_SLEEP_S))
    return True
