"""Evidence of success by node: chance of success, paths of success, nodes that something follows. Spec §2.7.

Counted on variants and weighted with their sessions, so that the cost does not grow with the sessions.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from recorder.memory.graph.arrays import Bools, Floats, Ints, sort_distinct
from recorder.memory.graph.directly_follows import SUCCESS
from recorder.memory.graph.paths import NO_PATH
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.views.network_cache import network_of
from recorder.memory.views.networkx_graph import Network

#: A node is on a path of success if this share of the path's successful sessions visit it: others are strays.
_ON_PATH_SHARE = 0.1
#: Sessions of the average chance that each node is counted with, so that one session decides nothing.
_PRIOR_SESSIONS = 2


@dataclass(frozen=True, slots=True)
class SuccessEvidence:
    """Facts about the nodes of a graph, by number, from sessions that succeeded and sessions that failed."""

    #: P(success | the session visited the node).
    chance: Floats
    #: True where most sessions that visited the node and succeeded went on from it.
    is_followed: Bools
    #: The paths of success that each node is on.
    paths: dict[int, frozenset[int]]
    #: The sessions that succeeded as a graph, and the ids of its nodes.
    network: Network
    node_ids: list[str]

    def are_on_shared_path(self, nodes: Ints, next_nodes: Ints) -> Bools:
        """Return for each pair of nodes whether a path of success leads from one to the next.

        That is: one path holds both, and no node is skipped that all successes visit before the next one.
        """
        none: frozenset[int] = frozenset()
        pairs, pair_of = np.unique(np.stack([nodes, next_nodes], axis=1), axis=0, return_inverse=True)
        shared = [
            not self.paths.get(node, none).isdisjoint(self.paths.get(next_node, none))
            and not self.network.skips_required(self.node_ids[node], self.node_ids[next_node])
            for node, next_node in pairs.tolist()
        ]
        answers: Bools = np.array(shared, dtype=np.bool_)[pair_of.reshape(-1)]
        return answers


def compute_success_evidence(columns: GraphColumns, chosen: Bools, failing: Ints) -> SuccessEvidence:
    """Return the evidence of chosen sessions that succeeded, beside those that failed.

    Args:
        columns: the graph's columns.
        chosen: sessions to read; those that succeeded without failing first count as successes. Where there
            are none, those that failed first count.
        failing: rows of sessions that failed.
    """
    succeeded = chosen & (columns.outcome == SUCCESS)
    clean = succeeded.copy()
    clean[failing] = False
    count = len(columns.variant_path)
    shown = clean if clean.any() else succeeded
    successes = np.bincount(columns.variant[shown], minlength=count)
    failures = np.bincount(columns.variant[failing], minlength=count)
    variant, node = np.divmod(
        columns.derive("visited nodes", _list_nodes_for_success_evidence), len(columns.nodes)
    )
    by_node = np.bincount(node, weights=successes[variant], minlength=len(columns.nodes))
    failed_by_node = np.bincount(node, weights=failures[variant], minlength=len(columns.nodes))
    average = successes.sum() / max(successes.sum() + failures.sum(), 1)
    return SuccessEvidence(
        chance=(by_node + _PRIOR_SESSIONS * average) / (by_node + failed_by_node + _PRIOR_SESSIONS),
        is_followed=_list_followed_success_nodes(columns, successes, by_node),
        paths=_list_paths_of_success(columns, successes, variant, node),
        network=network_of(columns, shown),
        node_ids=[info.node_id for info in columns.nodes],
    )


def _list_nodes_for_success_evidence(columns: GraphColumns) -> Ints:
    """Return the nodes that each variant visits, once each, as variant * number of nodes + node."""
    owners = np.repeat(np.arange(len(columns.variant_path)), np.diff(columns.variant_start))
    return sort_distinct(owners * max(len(columns.nodes), 1) + columns.variant_nodes)


def _list_followed_success_nodes(columns: GraphColumns, successes: Ints, by_node: Ints | Floats) -> Bools:
    """Return for each node whether most successful sessions that entered it went on to another node."""
    has_nodes = np.diff(columns.variant_start) > 0
    last = columns.variant_nodes[columns.variant_start[1:][has_nodes] - 1]
    ended = np.bincount(last, weights=successes[has_nodes], minlength=len(columns.nodes))
    is_followed: Bools = by_node > 2 * ended
    return is_followed


def _list_paths_of_success(
    columns: GraphColumns, successes: Ints, variant: Ints, node: Ints
) -> dict[int, frozenset[int]]:
    """Return for each node the paths of which enough successful sessions visit it."""
    has_path = (columns.variant_path != NO_PATH) & (successes > 0)
    sizes = np.bincount(
        columns.variant_path[has_path], weights=successes[has_path], minlength=len(columns.paths)
    )
    is_placed = has_path[variant]
    variant, node = variant[is_placed], node[is_placed]
    pairs, pair_of = np.unique(
        columns.variant_path[variant] * max(len(columns.nodes), 1) + node, return_inverse=True
    )
    visits = np.bincount(pair_of, weights=successes[variant], minlength=len(pairs))
    path, node = np.divmod(pairs, max(len(columns.nodes), 1))
    is_common = visits >= _ON_PATH_SHARE * sizes[path]
    paths: defaultdict[int, set[int]] = defaultdict(set)
    for path_number, node_number in zip(path[is_common].tolist(), node[is_common].tolist(), strict=True):
        paths[node_number].add(path_number)
    return {number: frozenset(on_paths) for number, on_paths in paths.items()}
