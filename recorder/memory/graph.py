"""The memory graph of one workflow in memory: sessions in, changes out. Spec §2.6.

Pure: `recorder.memory.store` loads it and writes what changed. Statistics are additive, so batches may come
in any order; only unseen micro-states meet exemplars, and only unseen variants meet leaders.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from recorder.memory.nodes import GraphScope, Node, NodeIndex
from recorder.memory.paths import Path, PathIndex, Variant, variant_key
from recorder.memory.steps import Step


@dataclass(frozen=True, slots=True)
class Trace:
    """One session's way through the graph: equal nodes in a row count once."""

    session_id: str
    variant_key: int
    path_id: str
    nodes: tuple[int, ...]
    #: When each node was entered, in ms since the session's start.
    entered_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphChange:
    """What a batch of sessions adds to a graph."""

    nodes: list[Node] = field(default_factory=list)
    #: `(micro_key, node number)` of micro-states not seen before.
    micro_states: list[tuple[int, int]] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)


class Graph:
    """Nodes, variants and paths of one workspace, mode and workflow."""

    def __init__(self, scope: GraphScope) -> None:
        self.scope = scope
        self.node_index = NodeIndex(scope)
        self.path_index = PathIndex(scope)

    @property
    def nodes(self) -> list[Node]:
        """All nodes, by number."""
        return self.node_index.nodes

    @property
    def paths(self) -> list[Path]:
        """All paths, by number."""
        return self.path_index.paths

    def add_sessions(
        self, sessions: Mapping[str, Sequence[Step]], *, known: Iterable[str] = ()
    ) -> GraphChange:
        """Take in the steps of sessions; a session without any lies on the path of no nodes.

        Args:
            sessions: steps by session id.
            known: ids of sessions that were taken in before; they change nothing.
        """
        skipped = frozenset(known)
        fresh = {session_id: steps for session_id, steps in sessions.items() if session_id not in skipped}
        nodes, micro_states = self._assign(fresh)
        routes = {session_id: self._route(steps) for session_id, steps in fresh.items()}
        keys = self._variant_keys({route for route, _ in routes.values()})
        counted = Counter(route for route, _ in routes.values())
        variants, paths = self.path_index.add(
            {keys[route]: (route, count) for route, count in counted.items()}, self.nodes
        )
        traces = [
            self._trace(session_id, keys[route], route, entered)
            for session_id, (route, entered) in routes.items()
        ]
        return GraphChange(nodes, micro_states, variants, paths, traces)

    def _assign(self, sessions: Mapping[str, Sequence[Step]]) -> tuple[list[Node], list[tuple[int, int]]]:
        """Give every unseen micro-state its node, those of most sessions first."""
        index = self.node_index
        counts: Counter[int] = Counter()
        samples: dict[int, Step] = {}
        for steps in sessions.values():
            unseen = {step.micro_key: step for step in steps if step.micro_key not in index.number_of}
            counts.update(unseen.keys())
            for key, step in unseen.items():
                # Equal micro-states may carry other labels: the least one wins in every order.
                if key not in samples or step.label < samples[key].label:
                    samples[key] = step
        keys = sorted(counts, key=lambda key: (-counts[key], key))
        made = [index.assign(samples[key]) for key in keys]
        return [node for node in made if node is not None], [(key, index.number_of[key]) for key in keys]

    def _route(self, steps: Sequence[Step]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        number_of = self.node_index.number_of
        nodes: list[int] = []
        entered: list[int] = []
        last = -1
        for step in steps:
            number = number_of[step.micro_key]
            if number != last:
                nodes.append(number)
                entered.append(step.t_in_ms)
                last = number
        return tuple(nodes), tuple(entered)

    def _variant_keys(self, routes: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
        nodes = self.nodes
        return {route: variant_key(nodes[number].node_id for number in route) for route in routes}

    def _trace(self, session_id: str, key: int, route: tuple[int, ...], entered: tuple[int, ...]) -> Trace:
        path = self.paths[self.path_index.variants[key].path]
        return Trace(session_id, key, path.path_id, route, entered)
