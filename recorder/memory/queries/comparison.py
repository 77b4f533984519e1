"""Two selections of a graph's sessions side by side: what appeared, disappeared, changed. Contract §4 (diff).

One side is selected, the other is what it is held against: an earlier period, or another kind of actor.
Shares are of each side's own sessions, so sides of different size compare.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from typing import Any, TypeVar

import numpy as np

from recorder.memory.graph.arrays import Bools
from recorder.memory.queries.chosen_sessions import select_session_rows
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.common_paths import compute_outcome_fractions, describe_common_paths
from recorder.memory.views.graph_view import GraphView, ViewEdge, ViewNode, graph_view_of
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
class SessionSelection:
    """Filter that selects the sessions of one side."""

    since: datetime | None = None
    until: datetime | None = None
    actor_kind: ActorKind | None = None


def compare_selections(
    columns: GraphColumns,
    selected: SessionSelection,
    against: SessionSelection,
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
    both = [_ComparedHalf(columns, side, outcome, workflow) for side in (selected, against)]

    def kept(changes: Iterable[_Changed], name: Callable[[_Changed], Any]) -> list[_Changed]:
        moved = (
            change
            for change in changes
            if change.frequency != change.against_frequency
            and _measure_frequency_change(change) >= min_change
        )

        def order(change: _Changed) -> tuple[float, Any]:
            return (-_measure_frequency_change(change), name(change))

        # A graph may have 200,000 edges: only those that are listed are held.
        return sorted(moved, key=order) if limit is None else nsmallest(limit, moved, key=order)

    return MemoryComparison(
        workflow=workflow,
        graph_version=columns.version,
        selected=both[0].describe_side(),
        against=both[1].describe_side(),
        paths=kept(_compare_paths(*both), lambda path: path.path_id),
        nodes=kept(_compare_nodes(*both), lambda node: node.node_id),
        edges=kept(_compare_edges(*both), lambda edge: (edge.source or "", edge.target or "")),
    )


class _ComparedHalf:
    """One side with its paths, nodes and edges by what they are known by."""

    def __init__(
        self, columns: GraphColumns, side: SessionSelection, outcome: Outcome | None, workflow: str
    ) -> None:
        self._side = side
        chosen = select_session_rows(
            columns, since=side.since, until=side.until, actor_kind=side.actor_kind, outcome=outcome
        )
        self._median_ms = _compute_compared_median(columns, chosen)
        self.view: GraphView = graph_view_of(columns, chosen, workflow=workflow)
        self.paths = {path.path_id: path for path in describe_common_paths(columns, chosen)}
        self.nodes = {node.node_id: node for node in self.view.nodes}
        self.edges = {(edge.source, edge.target): edge for edge in self.view.edges}

    def describe_side(self) -> ComparedSide:
        is_empty = self.view.sessions == 0
        return ComparedSide(
            since=self._side.since,
            until=self._side.until,
            actor_kind=self._side.actor_kind,
            session_count=self.view.sessions,
            outcomes=None if is_empty else compute_outcome_fractions(self.view.outcomes),
            median_duration_ms=self._median_ms,
        )


def _pair_by_key(
    selected: Mapping[_Key, _Thing], against: Mapping[_Key, _Thing]
) -> Iterable[tuple[_Thing, _Thing | None, _Thing | None]]:
    """Pair the things of both sides by key: a thing that describes the pair, and those of each side."""
    for key in {**against, **selected}:
        in_selected, in_against = selected.get(key), against.get(key)
        any_of_them = in_against if in_selected is None else in_selected
        assert any_of_them is not None
        yield any_of_them, in_selected, in_against


def _compare_paths(selected: _ComparedHalf, against: _ComparedHalf) -> Iterable[PathChange]:
    for path, in_selected, in_against in _pair_by_key(selected.paths, against.paths):
        yield PathChange(
            path_id=path.path_id,
            node_ids=path.node_ids,
            **_describe_change(
                selected,
                against,
                _count_compared_path_sessions(in_selected),
                _count_compared_path_sessions(in_against),
            ),
            outcomes=in_selected and in_selected.outcomes,
            against_outcomes=in_against and in_against.outcomes,
            median_duration_ms=in_selected and in_selected.median_duration_ms,
            against_median_duration_ms=in_against and in_against.median_duration_ms,
        )


def _compare_nodes(selected: _ComparedHalf, against: _ComparedHalf) -> Iterable[NodeChange]:
    for node, in_selected, in_against in _pair_by_key(selected.nodes, against.nodes):
        yield NodeChange(
            node_id=node.node_id,
            label=node.label,
            **_describe_change(
                selected, against, _count_compared_sessions(in_selected), _count_compared_sessions(in_against)
            ),
            outcomes=_read_outcome_shares(in_selected),
            against_outcomes=_read_outcome_shares(in_against),
        )


def _compare_edges(selected: _ComparedHalf, against: _ComparedHalf) -> Iterable[EdgeChange]:
    for edge, in_selected, in_against in _pair_by_key(selected.edges, against.edges):
        yield EdgeChange(
            source=edge.source,
            target=edge.target,
            **_describe_change(
                selected, against, _count_compared_sessions(in_selected), _count_compared_sessions(in_against)
            ),
            median_ms=in_selected and in_selected.median_ms,
            against_median_ms=in_against and in_against.median_ms,
        )


def _count_compared_path_sessions(path: MemoryPath | None) -> int:
    return 0 if path is None else path.session_count


def _count_compared_sessions(part: ViewNode | ViewEdge | None) -> int:
    return 0 if part is None else part.sessions


def _read_outcome_shares(part: ViewNode | None) -> Any:
    return None if part is None else compute_outcome_fractions(part.outcomes)


def _describe_change(
    selected: _ComparedHalf, against: _ComparedHalf, in_selected: int, in_against: int
) -> dict[str, Any]:
    """Return the members that the changes of paths, nodes and edges in a comparison have."""
    change: Change = "changed"
    if not in_selected or not in_against:
        change = "appeared" if in_selected else "disappeared"
    return {
        "change": change,
        "frequency": selected.view.share(in_selected),
        "against_frequency": against.view.share(in_against),
        "session_count": in_selected,
        "against_session_count": in_against,
    }


def _measure_frequency_change(change: Changed) -> float:
    return abs(change.frequency - change.against_frequency)


def _compute_compared_median(columns: GraphColumns, chosen: Bools) -> int | None:
    durations: Sequence[int] = np.sort(columns.duration_ms[chosen]).tolist()
    middle = len(durations) // 2
    return (durations[middle] + durations[len(durations) - 1 - middle]) // 2 if durations else None
