"""Fit of a path to its shown way: counts of variants and of sessions that took it exactly. Contract §4."""

from dataclasses import dataclass

import numpy as np

from recorder.memory.graph.arrays import Bools, Ints, sort_distinct
from recorder.memory.graph.paths import NO_PATH, variant_key
from recorder.memory.graph.shown_way import find_optional_nodes
from recorder.memory.queries.columns import GraphColumns

_NO_VARIANT = -1


@dataclass(frozen=True, slots=True)
class PathFitWays:
    """The shown way of each path, by path number."""

    #: Variant that is exactly the shown nodes; -1 where no session ever took them.
    variant: Ints
    #: Nodes that enough of the path's sessions leave out, in the order of the way.
    optional: list[tuple[int, ...]]

    def count_exact(self, columns: GraphColumns, chosen: Bools) -> Ints:
        """Return by path how many of the chosen sessions took exactly the shown nodes."""
        sessions_of = np.bincount(columns.variant[chosen], minlength=len(columns.variant_path) + 1)
        # The index of -1 is the last one, which is 0; a variant may have moved to another path.
        is_on_path = np.append(columns.variant_path, NO_PATH)[self.variant] == np.arange(len(self.variant))
        return np.where(is_on_path, sessions_of[self.variant], 0)


def derive_shown_ways(columns: GraphColumns) -> PathFitWays:
    """Return the shown ways of a graph; made once for each version."""
    return columns.derive("shown ways", _build_path_fit_ways)


def count_variants(columns: GraphColumns, chosen: Bools) -> Ints:
    """Return by path how many different variants the chosen sessions took."""
    paths = columns.variant_path[sort_distinct(columns.variant[chosen])]
    return np.bincount(paths[paths != NO_PATH], minlength=len(columns.paths))


def _build_path_fit_ways(columns: GraphColumns) -> PathFitWays:
    """Return the variant of each path's way, and the nodes on it that sessions may leave out."""
    numbers = columns.variant_number
    keys = [variant_key(columns.nodes[node].node_id for node in path.nodes) for path in columns.paths]
    variant = np.array([numbers.get(key, _NO_VARIANT) for key in keys], dtype=np.int64)
    sessions = np.bincount(columns.variant[columns.current()], minlength=len(columns.variant_path))
    variants = np.flatnonzero((sessions > 0) & (columns.variant_path != NO_PATH))
    totals = np.bincount(
        columns.variant_path[variants], weights=sessions[variants], minlength=len(columns.paths)
    )
    width = max(len(columns.nodes), 1)
    owners = np.repeat(np.arange(len(columns.variant_path)), np.diff(columns.variant_start))
    visited = sort_distinct(owners * width + columns.variant_nodes)
    owners, nodes = np.divmod(visited, width)
    positions = columns.variant_path[owners] * width + nodes
    visitors: dict[int, int] = {}
    for index, count in zip(positions.tolist(), sessions[owners].tolist(), strict=True):
        visitors[index] = visitors.get(index, 0) + count
    optional = []
    for number, path in enumerate(columns.paths):
        total = int(totals[number])
        # A way may come to a node twice; it is listed once.
        way = np.array(list(dict.fromkeys(path.nodes)), dtype=np.int64)
        visits = [visitors.get(number * width + node, 0) for node in way.tolist()]
        mask = find_optional_nodes(total - np.array(visits, dtype=np.int64), total)
        optional.append(tuple(way[mask].tolist()))
    return PathFitWays(variant, optional)
