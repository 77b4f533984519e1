"""Two selections of a graph's sessions side by side: what appeared, disappeared, changed. Contract §4 (diff).

One side is selected, the other is what it is held against: an earlier period, or another kind of actor.
Shares are of each side's own sessions, so sides of different size compare.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import numpy as np

from recorder.memory.queries.columns import GraphColumns, Mask
from recorder.memory.queries.paths import describe_paths, filter_rows, outcome_fractions
from recorder.memory.views.graph_view import GraphView, ViewEdge, ViewNode, view_of
from recorder.models.memory import (
    Change,
    Changed,
    ComparedSide,
    EdgeChange,
    MemoryComparison,
    MemoryPath,
    NodeChange,
    PathChange,
)
from recorder.models.wire import ActorKind, Outcome

_Changed = TypeVar("_Changed", bound=Changed)
_Key = TypeVar("_Key")
_Thing = TypeVar("_Thing")
#: Shares that moved by less are left out, unless asked otherwise.
MIN_CHANGE = 0.01


@dataclass(frozen=True, slots=True)
class Side:
    """Filter that selects the sessions of one side."""

    since: datetime | None = None
    until: datetime | None = None
    actor_kind: ActorKind | None = None


def compare(
    columns: GraphColumns,
    selected: Side,
    against: Side,
    *,
    workflow: str,
    outcome: Outcome | None = None,
    min_change: float = MIN_CHANGE,
    limit: int | None = None,
) -> MemoryComparison:
    """Return the differences between two sides; the largest first, then by id.

    Args:
        columns: the graph's columns.
        selected: the sessions of interest.
        against: the sessions to compare them with.
        workflow: name of the workflow.
        outcome: only sessions that ended so, on both sides.
        min_change: what moved by less than this share is left out.
        limit: so many paths, nodes and edges each.
    """
    both = [_Half(columns, side, outcome, workflow) for side in (selected, against)]

    def kept(changes: Iterable[_Changed], name: Callable[[_Changed], Any]) -> list[_Changed]:
        moved = [
            change
            for change in changes
            if change.frequency != change.against_frequency and _moved(change) >= min_change
        ]
        return sorted(moved, key=lambda change: (-_moved(change), name(change)))[:limit]

    return MemoryComparison(
        workflow=workflow,
        graph_version=columns.version,
        selected=both[0].described(),
        against=both[1].described(),
        paths=kept(_paths(*both), lambda path: path.path_id),
        nodes=kept(_nodes(*both), lambda node: node.node_id),
        edges=kept(_edges(*both), lambda edge: (edge.source or "", edge.target or "")),
    )


class _Half:
    """One side with its paths, nodes and edges by what they are known by."""

    def __init__(self, columns: GraphColumns, side: Side, outcome: Outcome | None, workflow: str) -> None:
        self._side = side
        chosen = filter_rows(
            columns, since=side.since, until=side.until, actor_kind=side.actor_kind, outcome=outcome
        )
        self._median_ms = _median(columns, chosen)
        self.view: GraphView = view_of(columns, chosen, workflow=workflow)
        self.paths = {path.path_id: path for path in describe_paths(columns, chosen)}
        self.nodes = {node.node_id: node for node in self.view.nodes}
        self.edges = {(edge.source, edge.target): edge for edge in self.view.edges}

    def described(self) -> ComparedSide:
        is_empty = self.view.sessions == 0
        return ComparedSide(
            since=self._side.since,
            until=self._side.until,
            actor_kind=self._side.actor_kind,
            session_count=self.view.sessions,
            outcomes=None if is_empty else outcome_fractions(self.view.outcomes),
            median_duration_ms=self._median_ms,
        )


def _pairs(
    here: Mapping[_Key, _Thing], there: Mapping[_Key, _Thing]
) -> Iterable[tuple[_Thing, _Thing | None, _Thing | None]]:
    """Pair the things of both sides by key: a thing that describes the pair, and those of each side."""
    for key in {**there, **here}:
        ours, other = here.get(key), there.get(key)
        any_of_them = other if ours is None else ours
        assert any_of_them is not None
        yield any_of_them, ours, other


def _paths(here: _Half, there: _Half) -> Iterable[PathChange]:
    for path, ours, other in _pairs(here.paths, there.paths):
        yield PathChange(
            path_id=path.path_id,
            node_ids=path.node_ids,
            **_counts(here, there, _path_sessions(ours), _path_sessions(other)),
            outcomes=ours and ours.outcomes,
            against_outcomes=other and other.outcomes,
            median_duration_ms=ours and ours.median_duration_ms,
            against_median_duration_ms=other and other.median_duration_ms,
        )


def _nodes(here: _Half, there: _Half) -> Iterable[NodeChange]:
    for node, ours, theirs in _pairs(here.nodes, there.nodes):
        yield NodeChange(
            node_id=node.node_id,
            label=node.label,
            **_counts(here, there, _sessions(ours), _sessions(theirs)),
            outcomes=_outcomes(ours),
            against_outcomes=_outcomes(theirs),
        )


def _edges(here: _Half, there: _Half) -> Iterable[EdgeChange]:
    for edge, ours, theirs in _pairs(here.edges, there.edges):
        yield EdgeChange(
            source=edge.source,
            target=edge.target,
            **_counts(here, there, _sessions(ours), _sessions(theirs)),
            median_ms=ours and ours.median_ms,
            against_median_ms=theirs and theirs.median_ms,
        )


def _path_sessions(path: MemoryPath | None) -> int:
    return 0 if path is None else path.session_count


def _sessions(part: ViewNode | ViewEdge | None) -> int:
    return 0 if part is None else part.sessions


def _outcomes(part: ViewNode | None) -> Any:
    return None if part is None else outcome_fractions(part.outcomes)


def _counts(here: _Half, there: _Half, ours: int, theirs: int) -> dict[str, Any]:
    """Return the members that all changes share."""
    change: Change = "changed"
    if not ours or not theirs:
        change = "appeared" if ours else "disappeared"
    return {
        "change": change,
        "frequency": here.view.share(ours),
        "against_frequency": there.view.share(theirs),
        "session_count": ours,
        "against_session_count": theirs,
    }


def _moved(change: Changed) -> float:
    return abs(change.frequency - change.against_frequency)


def _median(columns: GraphColumns, chosen: Mask) -> int | None:
    durations: Sequence[int] = np.sort(columns.duration_ms[chosen]).tolist()
    middle = len(durations) // 2
    return (durations[middle] + durations[len(durations) - 1 - middle]) // 2 if durations else None
