"""Requested removals: searches of erasures, due steps of purges and ends of erasures, in one call.

Contract §7.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.governance.clock_corrections import correct_due_times
from recorder.governance.erasure_runs import open_erasure_run
from recorder.governance.purging.purge_runs import run_purges
from recorder.governance.purging.step_report import DueStepReport
from recorder.governance.table_rewrites import rewrite_small_file
from recorder.models.governance import PurgeRow
from recorder.models.operations import AuditRow
from recorder.runtime import Runtime
from recorder.storage.store_regions import StoreAway


@dataclass(frozen=True)
class Removals:
    """Purges and erasures that ended, and whether an erasure failed."""

    #: None if another run works on the purges, or a store is away.
    purges: DueStepReport | None
    erasures: int
    #: The first error of an erasure; the next run tries it again.
    error: Exception | None
    #: Why no purge was worked on, or not all were: a store is away.
    away: StoreAway | None


def run_removals(
    runtime: Runtime,
    owner: str,
    *,
    patience_s: float = 0.0,
    longest_s: float = math.inf,
    is_stopping: Callable[[], bool] = lambda: False,
    remove_texts: Callable[[], bool] = lambda: True,
) -> Removals:
    """Begin the purges of open erasures, work on all purges, and end erasures.

    A range of an erasure is searched after each round of purges, so that neither waits for all of the others.
    An erasure that fails does not stop the purges.

    Args:
        runtime: the deployment.
        owner: name of the run.
        patience_s: seconds to wait for the next step of a purge.
        longest_s: seconds after which no further round begins.
        is_stopping: whether to end before the next round of purges.
        remove_texts: see `ErasureRun`.

    Raises:
        LeaseLost: if another run took over.
    """
    correct_due_times(runtime.database)
    with open_erasure_run(runtime, owner, remove_texts=remove_texts) as erasures:
        if erasures is not None:
            erasures.end_erasures()
        purges, away = None, None
        try:
            purges = run_purges(
                runtime,
                owner,
                patience_s=patience_s,
                longest_s=longest_s,
                is_stopping=is_stopping,
                work_between=lambda: erasures is not None and erasures.search_next_range(),
            )
        except StoreAway as error:
            away = error
        if erasures is not None:
            erasures.end_erasures()
    ended, errors = (0, []) if erasures is None else (erasures.ended, [*erasures.errors.values()])
    ended += rewrite_small_file(runtime, owner)
    return Removals(purges, ended, errors[0] if errors else None, away)


def read_last_removal(db: DbSession, *, since: datetime) -> datetime | None:
    """Return when the last erasure or hard delete after an instant ended; None if there was none.

    What quotes recorded content outside the list of purges, such as Dagster's records, is removed up to it.
    """
    erasures = select(func.max(AuditRow.at)).where(
        AuditRow.action == "privacy.erase", col(AuditRow.at) >= since
    )
    purges = select(func.max(PurgeRow.done_at)).where(
        PurgeRow.cause == "hard_delete", col(PurgeRow.done_at) >= since
    )
    moments = [db.exec(erasures).one(), db.exec(purges).one()]
    return max((moment for moment in moments if moment is not None), default=None)
