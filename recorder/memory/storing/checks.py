"""Whether a graph agrees with its sessions, recounted from rows past every cache. Spec §2.6."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder.memory.building.nodes import GraphScope
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.paths import describe_paths
from recorder.memory.storing.missing import find_missing
from recorder.memory.storing.store import read_rows
from recorder.memory.storing.versions import read_head
from recorder.models.memory import GraphPathRow, GraphTraceRow, GraphVariantRow, SessionPathRow


@dataclass(frozen=True, slots=True)
class GraphCheck:
    """What a look at one graph found; each list names what is wrong, and is empty where nothing is."""

    scope: GraphScope
    sessions: int
    #: Sessions that lie on no path, on several, or on one that was merged into another.
    off_path: list[str] = field(default_factory=list)
    #: Sealed sessions that should be in the graph.
    missing: list[str] = field(default_factory=list)
    #: Traces whose counter differs from the sessions that took them: key, counter, sessions.
    miscounted: list[tuple[int, int, int]] = field(default_factory=list)
    #: Paths whose outcomes, and the graph if its frequencies, do not sum to 1.
    unequal: list[str] = field(default_factory=list)


def check_graph(db: DbSession, scope: GraphScope) -> GraphCheck:
    """Recount one graph, in one transaction."""
    row = SessionPathRow
    current = read_rows(db, scope, row.session_id, row.trace_key, where=[col(row.removed_version).is_(None)])
    off_path = _off_path(db, scope, [(found.session_id, found.trace_key) for found in current])
    return GraphCheck(
        scope,
        sessions=len(current),
        off_path=off_path,
        missing=[session.id for session in find_missing(db, scope)],
        miscounted=_miscounted(db, scope, Counter(found.trace_key for found in current)),
        # Fractions of sessions that lie nowhere cannot be told.
        unequal=[] if off_path else _unequal(db, scope),
    )


def _off_path(db: DbSession, scope: GraphScope, current: list[tuple[str, int]]) -> list[str]:
    lives = read_rows(db, scope, GraphPathRow.number, where=[col(GraphPathRow.merged_into).is_(None)])
    live = {number for (number,) in lives}
    path_of = dict(read_rows(db, scope, GraphVariantRow.variant_key, GraphVariantRow.path))
    variant_of = dict(read_rows(db, scope, GraphTraceRow.trace_key, GraphTraceRow.variant_key))
    lies_on: defaultdict[str, list[int | None]] = defaultdict(list)
    for session_id, trace in current:
        lies_on[session_id].append(path_of.get(variant_of.get(trace, 0)))
    return sorted(
        session_id for session_id, paths in lies_on.items() if len(paths) != 1 or paths[0] not in live
    )


def _miscounted(db: DbSession, scope: GraphScope, taken: Counter[int]) -> list[tuple[int, int, int]]:
    counters = dict(read_rows(db, scope, GraphTraceRow.trace_key, GraphTraceRow.n))
    keys = sorted(counters.keys() | taken.keys())
    return [(key, counters.get(key, 0), taken[key]) for key in keys if counters.get(key, 0) != taken[key]]


def _unequal(db: DbSession, scope: GraphScope) -> list[str]:
    head = read_head(db, scope)
    if head is None or not head.version:
        return []
    columns = GraphColumns().updated(db, scope, head.version)
    paths = describe_paths(columns, columns.current(), min_frequency=0, limit=len(columns.paths))
    found = [
        path.path_id
        for path in paths
        if not math.isclose(sum(path.outcomes.model_dump().values()), 1, abs_tol=1e-9)
    ]
    if paths and not math.isclose(sum(path.frequency for path in paths), 1, abs_tol=1e-9):
        found.append(scope.workflow)
    return found
