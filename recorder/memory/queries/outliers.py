"""Outliers: sessions on rare paths, and sessions whose way is unusual. Spec §4.2; contract §4 (outliers)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from recorder.memory.graph.directly_follows import Crossings, list_crossings
from recorder.memory.graph.inverted_index import Floats, Ints
from recorder.memory.graph.paths import NO_PATH
from recorder.memory.queries.columns import GraphColumns, Mask

#: Paths of fewer sessions than this share are off the common ones, by default.
THRESHOLD = 0.01
#: Added to each count of an edge (Krichevsky and Trofimov), so that an edge that was taken once is possible.
_SMOOTHING = 0.5

Rank = Literal["path", "typicality"]


@dataclass(frozen=True, slots=True)
class Outliers:
    """Rows of sessions, the least typical first, then the newest, then by id."""

    rows: Ints
    #: Share of the chosen sessions that are on the same path, and typicality of the way: both 0 to 1.
    path_frequency: Floats
    typicality: Floats


def find_outliers(
    columns: GraphColumns, chosen: Mask, *, rank: Rank = "path", threshold: float = THRESHOLD
) -> Outliers:
    """Return chosen sessions, the least typical first; a session without steps is on no path, and no outlier.

    Args:
        columns: sessions of the graph.
        chosen: rows to select from.
        rank: `path` returns the sessions whose path fewer than `threshold` of the chosen ones take,
            `typicality` returns all chosen sessions.
        threshold: share of a path, 0 to 1.
    """
    paths = columns.path
    total = max(int(chosen.sum()), 1)
    chosen = chosen & (paths != NO_PATH)
    counts = np.bincount(paths[chosen], minlength=len(columns.paths))
    frequency = counts / total
    rows = np.flatnonzero(chosen & (frequency[paths] < threshold) if rank == "path" else chosen)
    typical = compute_typicality(columns, chosen)[columns.variant[rows]]
    order = np.lexsort((columns.session_id[rows], -columns.started_ms[rows], typical))
    rows, typical = rows[order], typical[order]
    return Outliers(rows, frequency[paths[rows]], typical)


def compute_typicality(columns: GraphColumns, chosen: Mask) -> Floats:
    """Compute for each variant the geometric mean of the probabilities of its edges, 0 to 1.

    Edges count between nodes and between actions (nodes without their screen): an unusual act on a common
    screen lowers both, a screen that has changed lowers the first alone. The edge into the first node counts,
    and the edge from the last one to the end, so that a session that stops early is unusual. The probability
    of an edge is the number of chosen sessions that took it divided by the number that left its source, with
    a half added to each count.
    """
    sessions = np.bincount(columns.variant[chosen], minlength=len(columns.variant_path))
    sums = np.zeros(len(sessions))
    sizes = np.zeros(len(sessions), dtype=np.int64)
    for crossings in (columns.derive("crossings", _list_edges), columns.derive("acts", _list_act_edges)):
        logarithms = _compute_log_probabilities(crossings, sessions)
        sums += np.bincount(crossings.variant, weights=logarithms[crossings.edge], minlength=len(sessions))
        sizes += np.bincount(crossings.variant, minlength=len(sessions))
    typical: Floats = np.exp(sums / np.maximum(sizes, 1))
    return typical


def _compute_log_probabilities(crossings: Crossings, sessions: Ints) -> Floats:
    """Return the logarithm of the probability of each edge, for so many sessions of each variant."""
    weights = sessions[crossings.variant].astype(np.float64)
    taken = np.bincount(crossings.edge, weights=weights, minlength=len(crossings.edge_source))
    departures = np.bincount(crossings.edge_source, weights=taken)
    possible = max(len(np.unique(crossings.edge_target[taken > 0])), 1)
    logarithms: Floats = np.log(taken + _SMOOTHING) - np.log(
        departures[crossings.edge_source] + _SMOOTHING * possible
    )
    return logarithms


def _list_edges(columns: GraphColumns) -> Crossings:
    return list_crossings(columns.variant_nodes, columns.variant_start, len(columns.nodes))


def _list_act_edges(columns: GraphColumns) -> Crossings:
    """Return the crossings of variants as sequences of actions."""
    numbers: dict[int, int] = {}
    acts = np.array([numbers.setdefault(node.act, len(numbers)) for node in columns.nodes], dtype=np.int64)
    return list_crossings(acts[columns.variant_nodes], columns.variant_start, len(numbers))
