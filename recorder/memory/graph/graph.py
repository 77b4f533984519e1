"""The memory graph of one workflow in memory: sessions in, changes out. Spec §2.6.

Pure: `recorder.memory.storage` loads it and writes what changed. Statistics are additive, so batches may come
in any order; only unseen micro-states and unseen variants meet exemplars.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import xxhash

from recorder.memory.graph.capacity import (
    DEFAULT_CAPACITY,
    TRACE_BYTES,
    UNKEPT_TRACE,
    GraphCapacity,
    make_step_beyond_capacity,
    replace_step_beyond_capacity,
)
from recorder.memory.graph.node_labels import LabelText, NodeLabels
from recorder.memory.graph.nodes import Node, NodeIndex, select_compared_features
from recorder.memory.graph.paths import NO_PATH, Path, PathIndex, Variant, variant_key
from recorder.memory.steps.action_tokens import make_signed_key
from recorder.memory.steps.session_steps import Step
from recorder.tenant import GraphScope

#: Of a longer session the graph takes the beginning: no single one may hold up the others.
MAX_TRACE_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class MicroState:
    """A micro-state with the node it belongs to; `features` are hashed tokens of its screen, sorted."""

    micro_key: int
    node: int
    features: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class StateTrace:
    """An exact sequence of micro-states, and the variant it is."""

    trace_key: int
    steps: tuple[int, ...]
    variant_key: int


@dataclass(frozen=True, slots=True)
class GraphSessionTrace:
    """One session's way through the graph."""

    session_id: str
    trace_key: int
    #: When each step of the trace began, in ms since the session's start.
    entered_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphChange:
    """Rows that a batch of sessions adds to a graph; of structure only those that are new."""

    nodes: list[Node] = field(default_factory=list)
    micro_states: list[MicroState] = field(default_factory=list)
    traces: list[StateTrace] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    sessions: list[GraphSessionTrace] = field(default_factory=list)
    labels: list[LabelText] = field(default_factory=list)
    #: Labels of older nodes, by number, whose names a purge had removed.
    names: dict[int, str] = field(default_factory=dict)


def trace_key(steps: Iterable[int]) -> int:
    """Hash a sequence of micro-states: the key is the same in every graph and after every rebuild."""
    return make_signed_key(xxhash.xxh64_intdigest(array("q", steps).tobytes()))


def drop_repeated_nodes(numbers: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers without those that equal their predecessor."""
    distinct: list[int] = []
    for number in numbers:
        if not distinct or number != distinct[-1]:
            distinct.append(number)
    return tuple(distinct)


class Graph:
    """Nodes, variants and paths of one workspace, mode and workflow."""

    def __init__(self, scope: GraphScope, capacity: GraphCapacity = DEFAULT_CAPACITY) -> None:
        self.scope = scope
        self.capacity = capacity
        self.node_index = NodeIndex(scope, capacity.bounds)
        self.path_index = PathIndex(scope, capacity.bounds)
        self.node_labels = NodeLabels()
        #: The variant key of each trace.
        self.variant_of: dict[int, int] = {}
        #: Steps of all traces.
        self.trace_steps = 0

    @property
    def nodes(self) -> list[Node]:
        """All nodes, by number."""
        return self.node_index.nodes

    @property
    def paths(self) -> list[Path]:
        """All paths, by number."""
        return self.path_index.paths

    @property
    def state_bytes(self) -> int:
        """Estimated memory of the states and of what names them."""
        return self.node_index.nbytes + self.node_labels.nbytes

    @property
    def way_bytes(self) -> int:
        """Estimated memory of the ways of sessions."""
        return TRACE_BYTES * len(self.variant_of) + self.path_index.nbytes

    def has_room_for_ways(self) -> bool:
        """Return whether an unseen way is kept."""
        capacity = self.capacity
        return self.way_bytes < capacity.way_bytes and self.trace_steps < capacity.trace_steps

    def path_of(self, trace: int) -> Path | None:
        """Return the path of a trace, by its key; None for that of no steps."""
        number = self.path_index.variants[self.variant_of[trace]].path
        return None if number == NO_PATH else self.paths[number]

    def count(self, trace: int, sessions: int) -> None:
        """Add so many sessions (or take away, if negative) to a trace, by its key."""
        self.path_index.count(self.variant_of[trace], sessions)

    def add_sessions(
        self,
        sessions: Mapping[str, Sequence[Step]],
        *,
        known: Iterable[str] = (),
        actors: Mapping[str, int] | None = None,
        max_comparisons: int | None = None,
    ) -> GraphChange:
        """Add the steps of sessions; a session without any is on no path.

        What the graph has no room for is added as `capacity` says.

        Args:
            sessions: steps by session id.
            known: ids of sessions that were taken in before; they change nothing.
            actors: key of each session's actor; without them all sessions are of one actor.
            max_comparisons: postings that may be read to find nodes, if fewer than the capacity says.
        """
        skipped = frozenset(known)
        fresh = {
            session_id: steps[:MAX_TRACE_STEPS]
            for session_id, steps in sessions.items()
            if session_id not in skipped
        }
        beyond_limit = self._list_sessions_beyond_limit(fresh)
        fresh |= dict.fromkeys(beyond_limit, ())
        nodes, micro_states, stand_ins = self._assign(fresh, max_comparisons)
        if stand_ins:
            fresh = {
                session_id: [replace_step_beyond_capacity(step, stand_ins) for step in steps]
                for session_id, steps in fresh.items()
            }
        taken = [
            GraphSessionTrace(session_id, UNKEPT_TRACE, ())
            if session_id in beyond_limit
            else _make_graph_session_trace(session_id, steps)
            for session_id, steps in fresh.items()
        ]
        unseen = {
            trace.trace_key: tuple(step.micro_key for step in fresh[trace.session_id])
            for trace in taken
            if trace.trace_key not in self.variant_of
        }
        self.trace_steps += sum(map(len, unseen.values()))
        sequences = {key: self._make_node_sequence(steps) for key, steps in unseen.items()}
        self.variant_of.update({key: self._make_variant_key(nodes) for key, nodes in sequences.items()})
        variants, paths = self.path_index.add(self._counted(taken, sequences), self.nodes)
        traces = [StateTrace(key, steps, self.variant_of[key]) for key, steps in unseen.items()]
        number_of = self.node_index.number_of
        labels = [
            text
            for session_id, steps in fresh.items()
            for text in self.node_labels.add_session(
                session_id,
                steps,
                number_of,
                (actors or {}).get(session_id, 0),
                max_bytes=self.capacity.state_bytes - self.node_index.nbytes,
            )
        ]
        names = self._name_nodes_again(fresh)
        return GraphChange(nodes, micro_states, traces, variants, paths, taken, labels, names)

    def _name_nodes_again(self, sessions: Mapping[str, Sequence[Step]]) -> dict[int, str]:
        """Give nodes without a label the least label of their steps; return the new labels by number."""
        index = self.node_index
        names: dict[int, str] = {}
        for steps in sessions.values() if index.unnamed else ():
            for step in steps:
                number = index.number_of[step.micro_key]
                if number in index.unnamed:
                    names[number] = min(step.label, names.get(number, step.label))
        for number, label in names.items():
            index.name_node(number, label)
        return names

    def _list_sessions_beyond_limit(self, sessions: Mapping[str, Sequence[Step]]) -> frozenset[str]:
        """Return the sessions that go a way for which there is no room."""
        if self.has_room_for_ways():
            return frozenset()
        return frozenset(
            session_id
            for session_id, steps in sessions.items()
            if steps and trace_key(step.micro_key for step in steps) not in self.variant_of
        )

    def _assign(
        self, sessions: Mapping[str, Sequence[Step]], max_comparisons: int | None
    ) -> tuple[list[Node], list[MicroState], dict[int, int | None]]:
        """Give every unseen micro-state its node, those of most sessions first.

        Returns:
            The new nodes, the new micro-states, and what counts for those that there is no room for
            (`capacity.replace_step_beyond_capacity`).
        """
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
        made: list[Node] = []
        states: list[MicroState] = []
        stand_ins: dict[int, int | None] = {}
        allowed = self.capacity.comparisons if max_comparisons is None else max_comparisons
        last_comparison = index.comparisons + allowed

        def keep(step: Step, node: Node | None) -> None:
            if node is not None:
                made.append(node)
            number = index.number_of[step.micro_key]
            states.append(MicroState(step.micro_key, number, select_compared_features(step.features)))

        for key in sorted(counts, key=lambda key: (-counts[key], key)):
            step, may_compare = samples[key], index.comparisons < last_comparison
            if may_compare and self.state_bytes < self.capacity.state_bytes:
                keep(step, index.assign(step))
                continue
            stand_ins[key] = index.find_stand_in(step) if may_compare else None
            if stand_ins[key] is None:
                other = make_step_beyond_capacity(step)
                if other.micro_key not in index.number_of:
                    keep(other, index.make_other_node(other))
        return made, states, stand_ins

    def _make_node_sequence(self, steps: Iterable[int]) -> tuple[int, ...]:
        number_of = self.node_index.number_of
        return drop_repeated_nodes(number_of[key] for key in steps)

    def _make_variant_key(self, sequence: Iterable[int]) -> int:
        nodes = self.nodes
        return variant_key(nodes[number].node_id for number in sequence)

    def _counted(
        self, taken: Iterable[GraphSessionTrace], sequences: Mapping[int, tuple[int, ...]]
    ) -> dict[int, tuple[tuple[int, ...], int]]:
        """Return nodes and number of sessions of each variant that the sessions took."""
        counts = Counter(self.variant_of[trace.trace_key] for trace in taken)
        made = {self.variant_of[key]: sequence for key, sequence in sequences.items()}
        known = self.path_index.variants
        return {
            key: (known[key].nodes if key in known else made[key], number) for key, number in counts.items()
        }


def _make_graph_session_trace(session_id: str, steps: Sequence[Step]) -> GraphSessionTrace:
    key = trace_key(step.micro_key for step in steps)
    return GraphSessionTrace(session_id, key, tuple(step.t_in_ms for step in steps))
