"""Common paths of a memory graph. Spec §2.6, §4.2."""

from collections.abc import Iterator, Sequence
from datetime import datetime

import numpy as np
from sqlmodel import Session as DbSession

from recorder import limits
from recorder.memory.graph.arrays import Bools, Ints
from recorder.memory.graph.directly_follows import OUTCOMES
from recorder.memory.graph.paths import NO_PATH
from recorder.memory.queries.chosen_sessions import read_newest_columns, select_session_rows
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.path_fit import count_variants, derive_shown_ways
from recorder.models.memory import MemoryPath, PathOutcomes
from recorder.models.wire import ActorKind, Outcome
from recorder.storage.list_pages import take_page_items
from recorder.tenant import GraphScope, Tenant


def list_paths(
    db: DbSession,
    *,
    tenant: Tenant,
    workflow: str,
    since: datetime | None = None,
    until: datetime | None = None,
    outcome: Outcome | None = None,
    actor_kind: ActorKind | None = None,
    min_frequency: float = 0.0,
    limit: int = limits.LIST_DEFAULT,
) -> list[MemoryPath]:
    """Return the paths of a workflow by frequency, the most frequent first, then by id.

    Frequency is the share of all indexed sessions that match the filters; paths below `min_frequency` or
    beyond `limit` are dropped afterwards, and the others keep theirs. The list ends before it has more bytes
    than a page.

    Args:
        db: the transaction.
        tenant: the workspace and mode.
        workflow: name of the workflow.
        since: sessions that started at this instant or later.
        until: sessions that started before this instant.
        outcome: only sessions that ended so.
        actor_kind: only sessions of such actors.
        min_frequency: least share of a path that is listed.
        limit: most paths that are listed.

    Raises:
        NotFound: for an unknown workflow.
    """
    columns = read_newest_columns(db, GraphScope(tenant, workflow))
    chosen = select_session_rows(columns, since=since, until=until, outcome=outcome, actor_kind=actor_kind)
    return take_page_items(_iterate_common_paths(columns, chosen, min_frequency=min_frequency, limit=limit))


def describe_common_paths(
    columns: GraphColumns, chosen: Bools, *, min_frequency: float = 0.0, limit: int | None = None
) -> list[MemoryPath]:
    """Return the paths that chosen sessions take, the most frequent first, then by id.

    Sessions without steps are on none of them; frequencies are shares of all chosen sessions.
    """
    return list(_iterate_common_paths(columns, chosen, min_frequency=min_frequency, limit=limit))


def _iterate_common_paths(
    columns: GraphColumns, chosen: Bools, *, min_frequency: float, limit: int | None
) -> Iterator[MemoryPath]:
    total = int(chosen.sum())
    chosen = chosen & (columns.path != NO_PATH)
    paths = columns.path[chosen]
    counts = np.bincount(paths, minlength=len(columns.paths))
    by_outcome = np.bincount(
        paths * len(OUTCOMES) + columns.outcome[chosen], minlength=len(columns.paths) * len(OUTCOMES)
    ).reshape(-1, len(OUTCOMES))
    medians = _compute_medians(columns, chosen, counts)
    ways = derive_shown_ways(columns)
    exact, variants = ways.count_exact(columns, chosen), count_variants(columns, chosen)
    numbers = [
        number for number in np.flatnonzero(counts).tolist() if counts[number] / total >= min_frequency
    ]
    numbers.sort(key=lambda number: (-counts[number], columns.paths[number].path_id))
    for number in numbers[:limit]:
        yield MemoryPath(
            path_id=columns.paths[number].path_id,
            node_ids=[columns.nodes[node].node_id for node in columns.paths[number].nodes],
            frequency=int(counts[number]) / total,
            outcomes=compute_outcome_fractions(by_outcome[number]),
            median_duration_ms=int(medians[number]),
            session_count=int(counts[number]),
            labels=[columns.nodes[node].label for node in columns.paths[number].nodes],
            optional_node_ids=[columns.nodes[node].node_id for node in ways.optional[number]],
            exact_frequency=int(exact[number]) / total,
            variants=int(variants[number]),
            graph_version=columns.version,
        )


def compute_outcome_fractions(counts: Ints | Sequence[int]) -> PathOutcomes:
    """Return counts by outcome as fractions that sum to 1."""
    total = sum(int(count) for count in counts)
    success, error, abandoned = (int(count) / total for count in counts)
    return PathOutcomes(success=success, error=error, abandoned=abandoned)


def _compute_medians(columns: GraphColumns, chosen: Bools, counts: Ints) -> Ints:
    """Return the exact median duration of each path's chosen sessions; of an even count the middle mean."""
    ordered = columns.order[chosen[columns.order]]
    if not len(ordered):
        return np.zeros_like(counts)
    durations = columns.duration_ms[ordered]
    starts = np.cumsum(counts) - counts
    low = np.minimum(starts + np.maximum(counts - 1, 0) // 2, len(ordered) - 1)
    high = np.minimum(starts + counts // 2, len(ordered) - 1)
    medians: Ints = (durations[low] + durations[high]) // 2
    return medians
