"""Requested removals: searches of erasures, due steps of purges and ends of erasures, in one call.

Contract §7.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.governance.erasures import try_erasures
from recorder.governance.purging.due_steps import DueStepReport
from recorder.governance.purging.purge_runs import run_purges
from recorder.governance.table_rewrites import rewrite_small_file
from recorder.models.governance import PurgeRow
from recorder.models.operations import AuditRow
from recorder.runtime import Runtime


@dataclass(frozen=True)
class Removals:
    """Purges and erasures that ended, and whether an erasure failed."""

    #: None if another run works on the purges.
    purges: DueStepReport | None
    erasures: int
    #: The first error of an erasure; the next run tries it again.
    error: Exception | None


def run_removals(
    runtime: Runtime,
    owner: str,
    *,
    patience_s: float = 0.0,
    is_stopping: Callable[[], bool] = lambda: False,
    remove_texts: Callable[[], bool] = lambda: True,
) -> Removals:
    """Begin the purges of open erasures, work on all purges, and end erasures.

    An erasure that fails does not stop the purges.

    Args:
        runtime: the deployment.
        owner: name of the run.
        patience_s: seconds to wait for the next step of a purge.
        is_stopping: whether to end before the next round of purges.
        remove_texts: see `run_erasures`.

    Raises:
        LeaseLost: if another run took over.
    """
    begun, first_error = try_erasures(runtime, owner, remove_texts)
    purges = run_purges(runtime, owner, patience_s=patience_s, is_stopping=is_stopping)
    ended, error = try_erasures(runtime, owner, remove_texts)
    ended += rewrite_small_file(runtime, owner)
    return Removals(purges, begun + ended, error or first_error)


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
