"""Nodes that sessions leave out of ways that were known before. Docs: docs/drift.md.

Where a step is no longer done, its sessions take the way that they took before, without the step. A new edge
or path that is such a way is a consequence of that step's fall, however late the fall itself can be proved.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby

from recorder.memory.drift.history import History
from recorder.memory.graph.arrays import Ints, sort_distinct

#: Sessions that must show it: a single one may be chance.
_LEAST_SESSIONS = 2


@dataclass(frozen=True, slots=True)
class KnownWays:
    """The ways that the sessions of a baseline took, by the nodes that they visit."""

    history: History
    #: By the number of nodes: the variant of each way, by the nodes that it visits.
    ways: dict[int, dict[frozenset[int], dict[tuple[int, ...], int]]]

    @classmethod
    def read(cls, history: History, start: int, end: int) -> "KnownWays":
        """Read the ways of the sessions from position `start` to before `end`."""
        ways: defaultdict[int, defaultdict[frozenset[int], dict[tuple[int, ...], int]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        for variant in sort_distinct(history.variant[start:end]).tolist():
            way = history.subjects.nodes_of_variant(variant)
            visited = frozenset(way)
            ways[len(visited)][visited][way] = variant
        return cls(history, {size: dict(of_size) for size, of_size in ways.items()})

    def list_nodes_left_out(self, positions: Ints) -> tuple[int, ...]:
        """Return the nodes without which at least two of some sessions took a known way."""
        sessions: defaultdict[int, int] = defaultdict(int)
        for variant in self.history.variant[positions].tolist():
            way = self.history.subjects.nodes_of_variant(variant)
            visited = frozenset(way)
            # Not node by node: a workflow may have thousands, its baseline some hundred ways.
            for nodes, known_ways in self.ways.get(len(visited) + 1, {}).items():
                if visited < nodes:
                    (node,) = nodes - visited
                    sessions[node] += any(_leave_out(known, node) == way for known in known_ways)
        return tuple(sorted(node for node, count in sessions.items() if count >= _LEAST_SESSIONS))

    def is_replaced(self, subject: int, positions: Ints) -> bool:
        """Return whether at least two of some sessions lost a subject by one node more in a known way."""
        has = self.history.subjects.variants_with(subject)
        sessions = 0
        for variant in self.history.variant[positions].tolist():
            if not has[variant]:
                known = self._list_ways_with_a_node_less(self.history.subjects.nodes_of_variant(variant))
                sessions += any(has[known_variant] for known_variant in known)
        return sessions >= _LEAST_SESSIONS

    def _list_ways_with_a_node_less(self, way: tuple[int, ...]) -> list[int]:
        """Return the variants of the known ways that a way becomes without one of its nodes."""
        visited, variants = frozenset(way), []
        for nodes, known_ways in self.ways.get(len(visited) - 1, {}).items():
            if nodes < visited:
                (node,) = visited - nodes
                if (variant := known_ways.get(_leave_out(way, node))) is not None:
                    variants.append(variant)
        return variants


def _leave_out(way: tuple[int, ...], node: int) -> tuple[int, ...]:
    """Return a way without one of its nodes; equal neighbours are one visit."""
    return tuple(visited for visited, _ in groupby(visited for visited in way if visited != node))
