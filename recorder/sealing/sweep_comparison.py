"""Comparison of sealed sessions with the lake, before their hot rows are deleted. Design §3."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.storage.lake_schemas import LakeKind, LakePartition
from recorder.storage.leases import LeaseLost
from recorder.tenant import Tenant

log = logging.getLogger("recorder.sealing")

_COUNTED: tuple[LakeKind, ...] = ("events", "frames", "sessions")

#: A session with the numbers of its rows in the lake.
_Counted = tuple[SessionRow, dict[LakeKind, int]]


def compare_sessions_with_lake(
    runtime: Runtime, tenant: Tenant, rows: Sequence[SessionRow]
) -> tuple[list[str], list[_Counted]]:
    """Return the ids of sessions that the lake holds completely, and the others with their counts.

    The sessions of a date are counted together: where many workflows have few sessions each, a read of the
    table's log takes longer than that of their files. Where it fails, each workflow is counted for itself.
    The sessions of one that fails are in neither list.
    """
    whole: list[str] = []
    differing: list[_Counted] = []
    for row, counts in _count_lake_rows_of_sessions(runtime, tenant, rows):
        if counts == {"events": row.event_count, "frames": row.frame_count, "sessions": 1}:
            whole.append(row.id)
        else:
            differing.append((row, counts))
    return whole, differing


@contextmanager
def log_sweep_error(work: str) -> Iterator[None]:
    """Log that some work of a sweep failed, whatever the error, instead of raising it.

    Raises:
        LeaseLost: if another run took over.
    """
    try:
        yield
    except LeaseLost:
        raise
    except Exception as error:
        log.warning("%s failed and is left to the next pass: %r", work, error)


def _count_lake_rows_of_sessions(
    runtime: Runtime, tenant: Tenant, rows: Sequence[SessionRow]
) -> list[_Counted]:
    counted: list[_Counted] = []
    for of_date in _group_sessions(rows, lambda row: row.lake_date or ""):
        groups = _group_sessions(of_date, lambda row: row.workflow)
        if len(groups) > 1:
            try:
                counted += _count_rows_of_date(runtime, tenant, of_date)
                continue
            except Exception as error:
                log.info("sessions of %s are counted by workflow after %r", tenant, error)
        for group in groups:
            with log_sweep_error(f"the comparison of workflow {group[0].workflow} of {tenant}"):
                counted += _count_rows_of_date(runtime, tenant, group)
    return counted


def _count_rows_of_date(runtime: Runtime, tenant: Tenant, rows: Sequence[SessionRow]) -> list[_Counted]:
    """Return sessions that were sealed on one date with the numbers of their rows in the lake."""
    partitions = {LakePartition(row.workflow, row.lake_date or "") for row in rows}
    session_ids = [row.id for row in rows]
    counts = {
        kind: runtime.lake.count_session_rows(kind, tenant, partitions=partitions, session_ids=session_ids)
        for kind in _COUNTED
    }
    return [(row, {kind: counts[kind][row.id] for kind in _COUNTED}) for row in rows]


def _group_sessions(
    rows: Sequence[SessionRow], key_of: Callable[[SessionRow], str]
) -> list[list[SessionRow]]:
    groups: defaultdict[str, list[SessionRow]] = defaultdict(list)
    for row in rows:
        groups[key_of(row)].append(row)
    return list(groups.values())
