"""Stability: ids through rebuilds, statistics and nodes in any order of sessions. Contract §4.

The same sessions are sealed in random orders and batches of random sizes into graphs of their own, each of
which is then rebuilt: anchored, fresh, and fresh again.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from sklearn.metrics import adjusted_rand_score

from benchmarks.figure_reports import Figure, at_least, at_most
from benchmarks.memory.graphs import Sealed, StoredGraph, stored_graph
from benchmarks.memory.planted import plant
from benchmarks.memory.planted_quality import sealed_of
from benchmarks.memory.tasks import DATA, read_demonstrations
from recorder.hashing import canonical_json, compute_sha256
from recorder.memory.graph.directly_follows import OUTCOMES

_ORDERS, _QUICK_ORDERS = 6, 3
_BATCHES = (1, 10, 50, 200, 1_000)
_PLANTED = 3_000

#: The live node of each micro-state, by its key.
Partition = dict[int, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result for one graph; shares are 0 to 1."""

    #: Ids that resolve to something live after an anchored rebuild; those that live on in a fresh one.
    anchored_kept: float
    fresh_nodes_kept: float
    fresh_paths_kept: float
    #: Digests of the statistics: as sealed, after the anchored, after the fresh rebuild.
    statistics: tuple[str, str, str]
    sealed_nodes: Partition
    merged_nodes: Partition
    fresh_nodes: Partition
    #: The path of each trace after a fresh rebuild, by trace key.
    fresh_paths: dict[int, int]
    #: Rows that a second rebuild of the kind changed.
    changed_again: int


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure the survival of ids and agreement between orders: of recorded tasks, else planted ones."""
    if DATA.is_dir():
        name, sessions = "MiniWoB", [demonstration.session for demonstration in read_demonstrations(DATA)]
    else:
        name, sessions = "planted", [sealed_of(session) for session in plant(_PLANTED).sessions]
    orders = range(1, 1 + (_QUICK_ORDERS if quick else _ORDERS))
    return figures_of(name, [seal_and_rebuild(sessions, order) for order in orders])


def seal_and_rebuild(sessions: Sequence[Sealed], order: int) -> Outcome:
    """Seal sessions in a random order into a graph, and rebuild it."""
    draw = random.Random(order)
    ordered = draw.sample(sessions, len(sessions))
    with stored_graph() as graph:
        while ordered:
            size = draw.choice(_BATCHES)
            graph.add(ordered[:size], batch=size)
            ordered = ordered[size:]
        sealed, statistics = _partition(graph), [compute_sha256(canonical_statistics(graph))]
        before = _ids(graph)
        graph.rebuild("anchored")
        live, merged = _live_ids(graph), _partition(graph)
        statistics.append(compute_sha256(canonical_statistics(graph)))
        changed_again = graph.rebuild("anchored").changed
        fresh = graph.rebuild("fresh")
        statistics.append(compute_sha256(canonical_statistics(graph)))
        changed_again += graph.rebuild("fresh").changed
        return Outcome(
            anchored_kept=len(before & live) / len(before),
            fresh_nodes_kept=fresh.nodes_kept / fresh.nodes_before,
            fresh_paths_kept=fresh.paths_kept / fresh.paths_before,
            statistics=(statistics[0], statistics[1], statistics[2]),
            sealed_nodes=sealed,
            merged_nodes=merged,
            fresh_nodes=_partition(graph),
            fresh_paths=_trace_paths(graph),
            changed_again=changed_again,
        )


def canonical_statistics(graph: StoredGraph) -> bytes:
    """Return all counts of a graph by micro-state: equal sessions give equal bytes, whatever its nodes are.

    For each micro-state its visits; for each step from one to the next how often, in what time and with what
    outcomes; for each trace its counter, and outcome and duration of its sessions.
    """
    columns, recorded = graph.columns(), graph.recorded()
    steps_of = {columns.trace_number[trace.trace_key]: trace.steps for trace in recorded.traces}
    visits: Counter[int] = Counter()
    crossed: defaultdict[tuple[int, int, str], list[int]] = defaultdict(lambda: [0, 0])
    ended: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
    for row in columns.current().nonzero()[0].tolist():
        trace, outcome = int(columns.trace[row]), OUTCOMES[columns.outcome[row]]
        steps = steps_of[trace]
        times = columns.step_ms[columns.time_start[row] : columns.time_start[row + 1]].tolist()
        visits.update(steps)
        for (source, target), ms in zip(pairwise((0, *steps, 0)), times, strict=True):
            edge = crossed[source, target, outcome]
            edge[0] += 1
            edge[1] += ms
        ended[trace].append((outcome, int(columns.duration_ms[row])))
    traces = [
        [steps_of[trace], recorded.sessions[key], sorted(ended[trace])]
        for key, trace in columns.trace_number.items()
    ]
    edges = [[*edge, *counted] for edge, counted in crossed.items()]
    return canonical_json([sorted(visits.items()), sorted(edges), sorted(traces)])


def figures_of(name: str, outcomes: Sequence[Outcome]) -> list[Figure]:
    """Return the figures of several orders of the same sessions."""
    digests = {digest for outcome in outcomes for digest in outcome.statistics}
    return [
        Figure(
            name=f"memory, {name}: share of ids that survive an anchored rebuild, aliases counted",
            unit="",
            ours=[outcome.anchored_kept for outcome in outcomes],
            goal=at_least(1.0),
        ),
        Figure(
            name=f"memory, {name}: share of nodes that live on in a fresh rebuild",
            unit="",
            ours=[outcome.fresh_nodes_kept for outcome in outcomes],
            goal=at_least(0.98),
        ),
        Figure(
            name=f"memory, {name}: share of paths that live on in a fresh rebuild",
            unit="",
            ours=[outcome.fresh_paths_kept for outcome in outcomes],
            goal=at_least(0.90),
        ),
        Figure(
            name=f"memory, {name}: different statistics of all orders, batches and rebuilds",
            unit="",
            ours=[len(digests)],
            goal=at_most(1),
            detail={"orders": len(outcomes)},
        ),
        Figure(
            name=f"memory, {name}: adjusted Rand index of nodes between orders, merged",
            unit="",
            ours=_agreements([outcome.merged_nodes for outcome in outcomes]),
            goal=at_least(0.90),
            detail={
                "as sealed": _agreements([outcome.sealed_nodes for outcome in outcomes]),
                "micro-states": len(outcomes[0].sealed_nodes),
            },
        ),
        Figure(
            name=f"memory, {name}: least agreement of two fresh rebuilds, over all orders",
            unit="",
            ours=[
                min(_agreements([outcome.fresh_nodes for outcome in outcomes])),
                min(_agreements([outcome.fresh_paths for outcome in outcomes])),
            ],
            goal=at_least(1.0),
            detail={"of": "nodes, paths"},
        ),
        Figure(
            name=f"memory, {name}: rows that a second rebuild changes, anchored and fresh",
            unit="",
            ours=[outcome.changed_again for outcome in outcomes],
            goal=at_most(0),
        ),
    ]


def _agreements(partitions: Sequence[Partition]) -> list[float]:
    """Return the adjusted Rand index of every two partitions of the same things."""
    return [
        float(adjusted_rand_score([left[key] for key in left], [right[key] for key in left]))
        for left, right in combinations(partitions, 2)
    ]


def _partition(graph: StoredGraph) -> Partition:
    return {state.micro_key: state.node for state in graph.recorded().micro_states}


def _trace_paths(graph: StoredGraph) -> dict[int, int]:
    recorded = graph.recorded()
    return {trace.trace_key: recorded.variants[trace.variant_key][1] for trace in recorded.traces}


def _ids(graph: StoredGraph) -> set[str]:
    columns = graph.columns()
    return {node.node_id for node in columns.nodes} | {path.path_id for path in columns.paths}


def _live_ids(graph: StoredGraph) -> set[str]:
    """Return the ids that a reader can still ask for, directly or as what they were merged into."""
    columns = graph.columns()
    nodes = _resolving([(node.node_id, node.representative) for node in columns.nodes])
    paths = _resolving([(path.path_id, path.representative) for path in columns.paths])
    return nodes | paths


def _resolving(known: Sequence[tuple[str, int]]) -> set[str]:
    return {name for name, live in known if known[live][1] == live}
