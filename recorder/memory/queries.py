"""What the memory graph answers: common paths, and what their nodes are called. Spec §2.6, §4.2."""

from collections.abc import Iterable
from datetime import datetime

import numpy as np
import numpy.typing as npt
from sqlmodel import Session as DbSession

from recorder import clock, limits
from recorder.errors import NotFound
from recorder.memory.columns import OUTCOMES, GraphColumns, read_columns
from recorder.memory.nodes import GraphScope
from recorder.memory.postings import Ints
from recorder.memory.versions import read_head
from recorder.models.memory import MemoryPath, PathOutcomes
from recorder.models.wire import Outcome


def list_paths(
    db: DbSession,
    *,
    workspace_id: str,
    mode: str,
    workflow: str,
    since: datetime | None = None,
    until: datetime | None = None,
    outcome: Outcome | None = None,
    min_frequency: float = 0.0,
    limit: int = limits.LIST_DEFAULT,
) -> list[MemoryPath]:
    """The paths of a workflow by frequency, the most frequent first, then by id.

    Frequency is the share of all indexed sessions that match the filters; paths below `min_frequency` or
    beyond `limit` are dropped afterwards, and the others keep theirs.

    Args:
        since: sessions that started at this instant or later.
        until: sessions that started before this instant.
        outcome: only sessions that ended so.

    Raises:
        NotFound: for an unknown workflow.
    """
    columns = _columns(db, GraphScope(workspace_id, mode, workflow))
    chosen = columns.removed > columns.version
    if since is not None:
        chosen &= columns.started_ms >= clock.to_ms(since)
    if until is not None:
        chosen &= columns.started_ms < clock.to_ms(until)
    if outcome is not None:
        chosen &= columns.outcome == OUTCOMES.index(outcome)
    return _describe(columns, chosen, min_frequency=min_frequency, limit=limit)


def path_labels(
    db: DbSession, *, workspace_id: str, mode: str, workflow: str, path_ids: Iterable[str]
) -> dict[str, list[str]]:
    """What the nodes of some paths are called, in order, by path id; unknown ids are left out.

    Raises:
        NotFound: for an unknown workflow.
    """
    columns = _columns(db, GraphScope(workspace_id, mode, workflow))
    wanted = frozenset(path_ids)
    return {
        path_id: [columns.nodes[number][1] for number in nodes]
        for path_id, nodes in columns.paths
        if path_id in wanted
    }


def _columns(db: DbSession, scope: GraphScope) -> GraphColumns:
    head = read_head(db, scope)
    if head is None:
        raise NotFound("workflow")
    return read_columns(db, scope, head.version)


def _describe(
    columns: GraphColumns, chosen: npt.NDArray[np.bool_], *, min_frequency: float, limit: int
) -> list[MemoryPath]:
    paths = columns.path[chosen]
    total = len(paths)
    counts = np.bincount(paths, minlength=len(columns.paths))
    by_outcome = np.bincount(
        paths * len(OUTCOMES) + columns.outcome[chosen], minlength=len(columns.paths) * len(OUTCOMES)
    ).reshape(-1, len(OUTCOMES))
    medians = _medians(columns, chosen, counts)
    kept = [number for number in np.flatnonzero(counts).tolist() if counts[number] / total >= min_frequency]
    kept.sort(key=lambda number: (-counts[number], columns.paths[number][0]))
    return [
        MemoryPath(
            path_id=columns.paths[number][0],
            node_ids=[columns.nodes[node][0] for node in columns.paths[number][1]],
            frequency=int(counts[number]) / total,
            outcomes=_fractions(by_outcome[number]),
            median_duration_ms=int(medians[number]),
            session_count=int(counts[number]),
            graph_version=columns.version,
        )
        for number in kept[:limit]
    ]


def _fractions(counts: Ints) -> PathOutcomes:
    total = int(counts.sum())
    success, error, abandoned = (int(count) / total for count in counts)
    return PathOutcomes(success=success, error=error, abandoned=abandoned)


def _medians(columns: GraphColumns, chosen: npt.NDArray[np.bool_], counts: Ints) -> Ints:
    """The exact median duration of each path's chosen sessions; of an even number the mean of the middle."""
    ordered = columns.order[chosen[columns.order]]
    if not len(ordered):
        return np.zeros_like(counts)
    durations = columns.duration_ms[ordered]
    starts = np.cumsum(counts) - counts
    low = np.minimum(starts + np.maximum(counts - 1, 0) // 2, len(ordered) - 1)
    high = np.minimum(starts + counts // 2, len(ordered) - 1)
    medians: Ints = (durations[low] + durations[high]) // 2
    return medians
