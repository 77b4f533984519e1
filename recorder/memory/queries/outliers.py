"""Outliers: sessions on rare paths, and sessions whose way is unusual. Spec §4.2; contract §4 (outliers)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from recorder.memory.graph.arrays import Bools, Floats, Ints
from recorder.memory.graph.directly_follows import list_variant_crossings
from recorder.memory.graph.paths import NO_PATH
from recorder.memory.queries.columns import GraphColumns

#: Paths of fewer sessions than this share are off the common ones, by default.
THRESHOLD = 0.01
#: Added to each count of an edge (Krichevsky and Trofimov), so that an edge that was taken once is possible.
_SMOOTHING = 0.5
#: So many sessions' worth of weight the whole graph has in the probability of an edge on a path. From 2 to 20
#: failed runs of MiniWoB rank alike.
_PRIOR_SESSIONS = 10

Rank = Literal["path", "typicality"]


@dataclass(frozen=True, slots=True)
class Outliers:
    """Rows of sessions, the least typical first, then the newest, then by id."""

    rows: Ints
    #: Share of the chosen sessions that are on the same path (0 for a session without steps), and typicality
    #: of the way: both 0 to 1.
    path_frequency: Floats
    typicality: Floats


def find_outliers(
    columns: GraphColumns, chosen: Bools, *, rank: Rank = "path", threshold: float = THRESHOLD
) -> Outliers:
    """Return chosen sessions, the least typical first.

    Purged sessions count in all figures and are not listed. A session without steps is on no path: `path`
    leaves it out, `typicality` lists it with the frequency 0.

    Args:
        columns: sessions of the graph.
        chosen: rows to select from.
        rank: `path` returns the sessions whose path fewer than `threshold` of the chosen ones take,
            `typicality` returns all chosen sessions.
        threshold: share of a path, 0 to 1.
    """
    paths = columns.path
    total = max(int(chosen.sum()), 1)
    on_path = chosen & (paths != NO_PATH)
    # The index of NO_PATH, which is -1, is the last one.
    frequency = np.append(np.bincount(paths[on_path], minlength=len(columns.paths)) / total, 0.0)
    is_listed = on_path & (frequency[paths] < threshold) if rank == "path" else chosen
    rows = np.flatnonzero(is_listed & ~columns.is_anonymous)
    typical = compute_typicality(columns, chosen)[columns.variant[rows]]
    order = np.lexsort((columns.session_id[rows], -columns.started_ms[rows], typical))
    rows, typical = rows[order], typical[order]
    return Outliers(rows, frequency[paths[rows]], typical)


def compute_typicality(columns: GraphColumns, chosen: Bools) -> Floats:
    """Compute for each variant the geometric mean of the probabilities of its edges, 0 to 1.

    Edges count between nodes and between actions (nodes without their screen): an unusual act on a common
    screen lowers both, a screen that has changed lowers the first alone. The edge into the first node counts,
    and the edge from the last one to the end, so that a session that stops early is unusual.

    The probability of an edge is the share of the other chosen sessions on the same path that took it, among
    those that left its source; where the path has few, the share among all others counts too.
    """
    sessions = np.bincount(columns.variant[chosen], minlength=len(columns.variant_path))
    sums = np.zeros(len(sessions))
    sizes = np.zeros(len(sessions), dtype=np.int64)
    for edges in (
        columns.derive("node edges", _list_node_edges),
        columns.derive("act edges", _list_act_edges),
    ):
        logarithms = np.log(_compute_probabilities(edges, sessions))
        sums += np.bincount(edges.variant, weights=logarithms, minlength=len(sessions))
        sizes += np.bincount(edges.variant, minlength=len(sessions))
    typical: Floats = np.exp(sums / np.maximum(sizes, 1))
    return typical


@dataclass(frozen=True, slots=True)
class _OutlierEdges:
    """Crossings of variants, each with its edge and source in the graph and in its path; all are numbers."""

    variant: Ints
    #: True target of each crossing.
    target: Ints
    edge: Ints
    source: Ints
    path_edge: Ints
    path_source: Ints
    #: How often the variant itself crosses the edge, and leaves the source.
    own_edge: Ints
    own_source: Ints


def _compute_probabilities(edges: _OutlierEdges, sessions: Ints) -> Floats:
    """Return the probability of each crossing, for so many sessions of each variant."""
    weights = sessions[edges.variant].astype(np.float64)

    def count_others(numbers: Ints, leaving_out: Ints) -> Floats:
        # A variant that no session takes has no session to leave out.
        others: Floats = np.maximum(np.bincount(numbers, weights=weights)[numbers] - leaving_out, 0)
        return others

    possible = max(int(np.count_nonzero(np.bincount(edges.target, weights=weights))), 1)
    anywhere = (count_others(edges.edge, edges.own_edge) + _SMOOTHING) / (
        count_others(edges.source, edges.own_source) + _SMOOTHING * possible
    )
    on_path = count_others(edges.path_edge, edges.own_edge) + _PRIOR_SESSIONS * anywhere
    probabilities: Floats = on_path / (count_others(edges.path_source, edges.own_source) + _PRIOR_SESSIONS)
    return probabilities


def _list_node_edges(columns: GraphColumns) -> _OutlierEdges:
    return _list_outlier_edges(columns, columns.variant_nodes, len(columns.nodes))


def _list_act_edges(columns: GraphColumns) -> _OutlierEdges:
    """Return the edges of variants as sequences of actions."""
    numbers: dict[int, int] = {}
    acts = np.array([numbers.setdefault(node.act, len(numbers)) for node in columns.nodes], dtype=np.int64)
    return _list_outlier_edges(columns, acts[columns.variant_nodes], len(numbers))


def _list_outlier_edges(columns: GraphColumns, values: Ints, count: int) -> _OutlierEdges:
    """Return the edges of variants as sequences of these values, below `count`."""
    crossings = list_variant_crossings(values, columns.variant_start, count)
    variant, edge, source = crossings.variant, crossings.edge, crossings.source
    # NO_PATH is -1.
    path = columns.variant_path[variant] + 1
    return _OutlierEdges(
        variant=variant,
        target=crossings.target,
        edge=edge,
        source=source,
        path_edge=_number_outlier_pairs(path, edge),
        path_source=_number_outlier_pairs(path, source),
        own_edge=_count_outlier_pairs(variant, edge),
        own_source=_count_outlier_pairs(variant, source),
    )


def _number_outlier_pairs(first: Ints, second: Ints) -> Ints:
    """Return a number for each pair, the same for equal pairs."""
    numbers: Ints = np.unique(_join_outlier_pairs(first, second), return_inverse=True)[1]
    return numbers


def _count_outlier_pairs(first: Ints, second: Ints) -> Ints:
    """Return for each pair how often it occurs."""
    _, numbers, counts = np.unique(
        _join_outlier_pairs(first, second), return_inverse=True, return_counts=True
    )
    occurrences: Ints = counts[numbers]
    return occurrences


def _join_outlier_pairs(first: Ints, second: Ints) -> Ints:
    """Return one number for each pair, the same for equal pairs."""
    joined: Ints = first * (second.max(initial=0) + 1) + second
    return joined
