"""Sessions within one edit of the shown way of their path, and exactly on it. Contract §4."""

from dataclasses import dataclass

import numpy as np

from recorder.memory.graph.paths import NO_PATH
from recorder.memory.graph.shown_way import MAX_EDITS, ShownWayVariants, count_edits
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.path_fit import derive_shown_ways


@dataclass(frozen=True, slots=True)
class Fit:
    """Shares of the sessions on a path, 0 to 1."""

    within_one_edit: float
    exact: float


def measure_fit(columns: GraphColumns) -> Fit:
    """Compare what each session did with the way that its path shows.

    Optional nodes, and coming back to a node, cost no edit.
    """
    shown = derive_shown_ways(columns)
    current = columns.current() & (columns.path != NO_PATH)
    sessions = np.bincount(columns.variant[current], minlength=len(columns.variant_path))
    taken = np.flatnonzero(sessions)
    near = 0
    for number in np.unique(columns.variant_path[taken]).tolist():
        rows = taken[columns.variant_path[taken] == number]
        bounds = zip(columns.variant_start[rows], columns.variant_start[rows + 1], strict=True)
        sequences = [tuple(columns.variant_nodes[first:last].tolist()) for first, last in bounds]
        ways = ShownWayVariants.of(sequences, sessions[rows].tolist())
        nodes = np.array(columns.paths[number].nodes, dtype=np.int64)
        edits = count_edits(nodes, np.isin(nodes, shown.optional[number]), ways)
        near += int(ways.sessions[edits <= MAX_EDITS].sum())
    total = int(current.sum())
    return Fit(near / total, int(shown.count_exact(columns, current).sum()) / total)
