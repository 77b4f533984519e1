"""Rebuild of a graph, computed without a database: fresh nodes and paths under the old ids.

Spec §4.2; contract §4.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from recorder.memory.graph.bounds import GRAPH_BOUNDS, GraphBounds
from recorder.memory.graph.capacity import DEFAULT_CAPACITY
from recorder.memory.graph.exemplars import ExemplarIndex
from recorder.memory.graph.graph import Graph, MicroState, StateTrace, drop_repeated_nodes
from recorder.memory.graph.nodes import (
    MergeCandidate,
    Node,
    NodeIndex,
    find_merged_nodes,
    find_representative_node,
    make_unused_graph_id,
)
from recorder.memory.graph.paths import NO_PATH, Path, PathIndex, Variant, variant_key
from recorder.memory.steps.session_steps import ALGO_VERSION
from recorder.tenant import GraphScope


@dataclass(frozen=True, slots=True)
class IdMatches:
    """The lasting numbers of new groups, and what becomes of the old ones that nothing took over."""

    #: By new group: an old number that it takes over, or the next free one.
    number_of: dict[int, int]
    #: By old number: the lasting number of the group that holds most of it.
    merged: dict[int, int]


def match_rebuilt_ids(
    old_of: Mapping[int, int], new_of: Mapping[int, int], weights: Mapping[int, int], *, free: int
) -> IdMatches:
    """Match two groupings of the same things.

    A new group takes over an old one where their overlap is more than half of their union, by weight; there
    is then at most one such partner on either side. A new group without one takes over the old group that it
    shares most with, of those of which it holds more than half.

    Args:
        old_of: the old group of each thing.
        new_of: the new group of each thing.
        weights: of each thing; things without weight count a little.
        free: the first number that no old group ever had.
    """
    shared: Counter[tuple[int, int]] = Counter()
    old_total: Counter[int] = Counter()
    new_total: Counter[int] = Counter()
    # Things without sessions count 1, those with sessions `unit` or more: the former decide only where the
    # latter do not.
    unit = len(old_of) + 1
    for thing, old in old_of.items():
        weight = weights.get(thing, 0) * unit + 1
        shared[old, new_of[thing]] += weight
        old_total[old] += weight
        new_total[new_of[thing]] += weight
    number_of = {
        new: old for (old, new), both in shared.items() if 2 * both > old_total[old] + new_total[new] - both
    }
    used_ids = set(number_of.values())
    for (old, new), both in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if new not in number_of and old not in used_ids and 2 * both > old_total[old]:
            number_of[new] = old
            used_ids.add(old)
    for new in sorted(set(new_total) - set(number_of)):
        number_of[new] = free
        free += 1
    merged: dict[int, int] = {}
    for (old, new), _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if old not in used_ids:
            merged.setdefault(old, number_of[new])
    return IdMatches(number_of, merged)


RebuildKind = Literal["anchored", "fresh"]


@dataclass(frozen=True, slots=True)
class RebuildInput:
    """All data that a graph is built from, and its present nodes and paths, by number."""

    scope: GraphScope
    nodes: Sequence[Node]
    paths: Sequence[Path]
    micro_states: Sequence[MicroState]
    traces: Sequence[StateTrace]
    #: Sessions of each trace, by key.
    sessions: Mapping[int, int]
    #: Nodes and path of each variant, by key.
    variants: Mapping[int, tuple[tuple[int, ...], int]]
    bounds: GraphBounds = GRAPH_BOUNDS


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A rebuilt graph, with all nodes and paths that ever were, by number."""

    graph: Graph
    micro_states: list[MicroState]
    traces: list[StateTrace]


def rebuild(recorded: RebuildInput, kind: RebuildKind) -> Rebuilt:
    """Rebuild a graph; the same input gives the same graph."""
    states = [_fill_features_for_rebuild(recorded, state) for state in recorded.micro_states]
    index = (
        _merge_nodes_in_rebuild(recorded, states) if kind == "anchored" else _fresh_nodes(recorded, states)
    )
    graph = Graph(recorded.scope, replace(DEFAULT_CAPACITY, bounds=recorded.bounds))
    graph.node_index = index
    variants: dict[int, tuple[tuple[int, ...], int]] = {}
    # By content, which decides among variants of equally many sessions: ids tell of the order things came in.
    for trace in sorted(recorded.traces, key=lambda trace: trace.trace_key):
        sequence = drop_repeated_nodes(index.number_of[key] for key in trace.steps)
        key = _compute_rebuilt_variant_key(index.nodes, sequence)
        counted = variants.get(key, (sequence, 0))[1] + recorded.sessions.get(trace.trace_key, 0)
        variants[key] = (sequence, counted)
        graph.variant_of[trace.trace_key] = key
    grouped = PathIndex(recorded.scope, recorded.bounds)
    groups = grouped.group(variants, index.nodes)
    group_of = {key: number for number, keys in enumerate(groups) for key in keys}
    graph.path_index = _with_lasting_numbers(recorded, graph, grouped, group_of)
    return Rebuilt(
        graph,
        [replace(state, node=index.number_of[state.micro_key]) for state in states],
        [replace(trace, variant_key=graph.variant_of[trace.trace_key]) for trace in recorded.traces],
    )


def _fill_features_for_rebuild(recorded: RebuildInput, state: MicroState) -> MicroState:
    """Give a micro-state without features those of its node's exemplar."""
    if state.features is not None:
        return state
    return replace(state, features=recorded.nodes[state.node].features)


def _compute_rebuilt_variant_key(nodes: Sequence[Node], sequence: Sequence[int]) -> int:
    return variant_key(nodes[number].node_id for number in sequence)


def _merge_nodes_in_rebuild(recorded: RebuildInput, states: Sequence[MicroState]) -> NodeIndex:
    """Return the nodes with those alike merged into the older, each led by its most frequent state."""
    acts = [node.act for node in recorded.nodes]
    node_of = {state.micro_key: find_representative_node(recorded.nodes, state.node) for state in states}
    merged = find_merged_nodes(
        (
            MergeCandidate(node_of[state.micro_key], acts[state.node], state.micro_key, state.features or ())
            for state in states
        ),
        recorded.bounds,
    )
    nodes = [
        replace(node, merged_into=merged[node.number]) if node.number in merged else node
        for node in recorded.nodes
    ]
    numbers = {key: merged.get(number, number) for key, number in node_of.items()}
    weights = _count_sessions_for_rebuild(recorded)
    ordered = sorted(states, key=lambda state: (-weights[state.micro_key], state.micro_key))
    exemplars: dict[int, MicroState] = {}
    for state in ordered:
        exemplars.setdefault(numbers[state.micro_key], state)
    for number, state in exemplars.items():
        nodes[number] = replace(nodes[number], micro_key=state.micro_key, features=state.features or ())
    screens = _group_screens(nodes, exemplars, recorded.bounds)
    index = NodeIndex(recorded.scope, recorded.bounds)
    index.restore(_choose_screen_leaders(nodes, screens), numbers.items())
    return index


def _group_screens(nodes: Sequence[Node], first: Iterable[int], bounds: GraphBounds) -> dict[int, int]:
    """Return for each node that is not merged the node whose screen its own is near, or itself.

    Args:
        nodes: all nodes, by number.
        first: the numbers of those to begin with, in order.
        bounds: how many screens are compared with each other.
    """
    unmerged = [node.number for node in nodes if node.merged_into is None]
    leaders = ExemplarIndex(bounds.exemplars)
    screens: dict[int, int] = {}
    for number in dict.fromkeys([*first, *unmerged]):
        leader = leaders.nearest(nodes[number].features)
        if leader is None:
            leaders.add(number, nodes[number].features)
        screens[number] = number if leader is None else leader
    return screens


def _fresh_nodes(recorded: RebuildInput, states: Sequence[MicroState]) -> NodeIndex:
    """Group micro-states into nodes, the most frequent first; each takes the number that most of it had."""
    weights = _count_sessions_for_rebuild(recorded)
    scratch = _group_states_into_nodes(recorded, states, weights)
    old_of = {state.micro_key: find_representative_node(recorded.nodes, state.node) for state in states}
    heirs = match_rebuilt_ids(old_of, scratch.number_of, weights, free=len(recorded.nodes))
    nodes = {
        node.number: replace(node, merged_into=heirs.merged.get(node.number, node.merged_into))
        for node in recorded.nodes
    }
    used_ids = {node.node_id for node in recorded.nodes}
    screens: dict[int, int] = {}
    for made in scratch.nodes:
        if made.number not in heirs.number_of:
            continue  # merged into another before it ever was
        number = heirs.number_of[made.number]
        screens[number] = made.screen
        if number in nodes:
            node_id = nodes[number].node_id
        else:
            node_id = make_unused_graph_id(
                "nde", recorded.scope, used_ids, ALGO_VERSION, made.act, made.features
            )
            used_ids.add(node_id)
        nodes[number] = replace(made, number=number, node_id=node_id)
    index = NodeIndex(recorded.scope, recorded.bounds)
    numbers = {key: heirs.number_of[number] for key, number in scratch.number_of.items()}
    index.restore(
        _choose_screen_leaders([nodes[number] for number in sorted(nodes)], screens), numbers.items()
    )
    return index


def _group_states_into_nodes(
    recorded: RebuildInput, states: Sequence[MicroState], weights: Mapping[int, int]
) -> NodeIndex:
    """Group micro-states under the most frequent, and merge them, without regard to the old nodes."""
    index = NodeIndex(recorded.scope, recorded.bounds)
    ordered = sorted(states, key=lambda state: (-weights[state.micro_key], state.micro_key))
    for state in ordered:
        old, features = recorded.nodes[state.node], state.features or ()
        number = index.nearest(old.act, features)
        if number is None:
            number = len(index.nodes)
            screen = index.screen_of(number, features)
            made = replace(
                old,
                number=number,
                micro_key=state.micro_key,
                screen=screen,
                features=features,
                merged_into=None,
            )
            index.restore([made], [])
        index.number_of[state.micro_key] = number
    merged = find_merged_nodes(
        (
            MergeCandidate(number, index.nodes[number].act, state.micro_key, state.features or ())
            for state in ordered
            for number in (index.number_of[state.micro_key],)
        ),
        recorded.bounds,
    )
    index.number_of = {key: merged.get(number, number) for key, number in index.number_of.items()}
    return index


def _choose_screen_leaders(nodes: Sequence[Node], screens: Mapping[int, int]) -> list[Node]:
    """Return nodes by number, each group of similar screens led by the oldest node that is not merged.

    Args:
        nodes: all nodes, by number.
        screens: the group of each such node, by number; any numbers.
    """
    leads: dict[int, int] = {}
    for node in nodes:
        if node.merged_into is None:
            leads.setdefault(screens[node.number], node.number)
    return [
        replace(node, screen=leads[screens[node.number]]) if node.merged_into is None else node
        for node in nodes
    ]


def _count_sessions_for_rebuild(recorded: RebuildInput) -> Counter[int]:
    """Return the number of sessions that visited each micro-state."""
    sessions: Counter[int] = Counter()
    for trace in recorded.traces:
        counted = recorded.sessions.get(trace.trace_key, 0)
        for key in set(trace.steps):
            sessions[key] += counted
    return sessions


def _with_lasting_numbers(
    recorded: RebuildInput, graph: Graph, grouped: PathIndex, group_of: Mapping[int, int]
) -> PathIndex:
    """Return the paths of a grouping, each under the number of the path that it mostly was."""
    old_of, new_of = {}, {}
    for trace in recorded.traces:
        key = graph.variant_of[trace.trace_key]
        nodes, path = recorded.variants[trace.variant_key]
        if key in group_of and nodes:
            old_of[trace.trace_key], new_of[trace.trace_key] = path, group_of[key]
    heirs = match_rebuilt_ids(old_of, new_of, recorded.sessions, free=len(recorded.paths))
    paths = {
        path.number: replace(path, merged_into=heirs.merged.get(path.number, path.merged_into))
        for path in recorded.paths
    }
    used_ids = {path.path_id for path in recorded.paths}
    members: defaultdict[int, list[int]] = defaultdict(list)
    for key in grouped.variants:
        if key in group_of:
            members[heirs.number_of[group_of[key]]].append(key)
    for number in sorted(members):
        leader = grouped.choose_leader(members[number])
        if number in paths:
            path_id = paths[number].path_id
        else:
            node_ids = [graph.nodes[node].node_id for node in leader.nodes]
            path_id = make_unused_graph_id("pth", recorded.scope, used_ids, node_ids)
            used_ids.add(path_id)
        paths[number] = Path(number, path_id, leader.variant_key, leader.nodes)
    number_of = {key: number for number, keys in members.items() for key in keys}
    lasting = PathIndex(recorded.scope, recorded.bounds)
    lasting.restore(
        [
            _list_rebuilt_variant_values(variant, number_of.get(key, NO_PATH))
            for key, variant in grouped.variants.items()
        ],
        (paths[number] for number in sorted(paths)),
        graph.nodes,
    )
    return lasting


def _list_rebuilt_variant_values(variant: Variant, path: int) -> tuple[int, tuple[int, ...], int, int]:
    return (variant.variant_key, variant.nodes, path, variant.sessions)
