"""Rebuilt graphs: statistics stay, ids stay known, and the order in which sessions came is forgotten."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from sklearn.metrics import adjusted_rand_score

from recorder.memory.graph.graph import Graph, MicroState, StateTrace
from recorder.memory.graph.nodes import find_representative_node
from recorder.memory.graph.rebuild import RebuildInput, RebuildKind, Rebuilt, match_rebuilt_ids, rebuild
from recorder.memory.steps.session_steps import Step
from recorder.tenant import GraphScope, Tenant
from tests.support.graph_sessions import make_step, make_steps

SCOPE = GraphScope(Tenant("wsp_a", "live"), "checkout")
KINDS: tuple[RebuildKind, ...] = ("anchored", "fresh")

Sessions = Sequence[tuple[str, Sequence[Step]]]


def grown(sessions: Sessions, *, batch: int = 5) -> tuple[RebuildInput, dict[str, int]]:
    """Return a graph that took sessions in batches, and the trace of each."""
    graph = Graph(SCOPE)
    states: list[MicroState] = []
    traces: list[StateTrace] = []
    trace_of: dict[str, int] = {}
    for start in range(0, len(sessions), batch):
        change = graph.add_sessions(dict(sessions[start : start + batch]))
        states += change.micro_states
        traces += change.traces
        trace_of |= {trace.session_id: trace.trace_key for trace in change.sessions}
    return recorded_of(graph, states, traces, Counter(trace_of.values())), trace_of


def recorded_of(
    graph: Graph, states: Sequence[MicroState], traces: Sequence[StateTrace], sessions: Counter[int]
) -> RebuildInput:
    """Return a graph as a rebuild finds it."""
    variants = {key: (variant.nodes, variant.path) for key, variant in graph.path_index.variants.items()}
    return RebuildInput(SCOPE, graph.nodes, graph.paths, states, traces, sessions, variants)


def again(recorded: RebuildInput, rebuilt: Rebuilt, kind: RebuildKind) -> Rebuilt:
    """Return the result of a second rebuild of the first one's result."""
    sessions = Counter(dict(recorded.sessions))
    return rebuild(recorded_of(rebuilt.graph, rebuilt.micro_states, rebuilt.traces, sessions), kind)


def screens_of(kind: int, count: int, rng: random.Random) -> list[Step]:
    """Return steps of one act on screens that share about three fifths of their tokens."""
    return [
        make_step("1a", features=[kind * 100 + index for index in rng.sample(range(12), 9)])
        for _ in range(count)
    ]


def mixed(seed: int) -> list[tuple[str, list[Step]]]:
    """Return sessions on three kinds of screens that vary, in an order of their own."""
    screens = [screens_of(kind, 12, random.Random(kind)) for kind in range(3)]
    rng = random.Random(9)
    sessions = [(f"s{number}", [rng.choice(screens[kind]) for kind in range(3)]) for number in range(90)]
    random.Random(seed).shuffle(sessions)
    return sessions


def partition(states: Iterable[MicroState]) -> list[int]:
    """Return the node of each micro-state, by key."""
    return [state.node for state in sorted(states, key=lambda state: state.micro_key)]


def test_nodes_that_turn_out_to_be_one_are_merged_into_the_older() -> None:
    recorded, trace_of = grown(mixed(1), batch=1)
    rebuilt = rebuild(recorded, "anchored")
    living = [node for node in rebuilt.graph.nodes if node.merged_into is None]
    assert (len(recorded.nodes) > 3, len(living)) == (True, 3)
    for node in rebuilt.graph.nodes:
        assert find_representative_node(rebuilt.graph.nodes, node.number) <= node.number
    (path,) = {rebuilt.graph.path_of(trace) for trace in trace_of.values()}
    assert path is not None and path.path_id in {path.path_id for path in recorded.paths}


@pytest.mark.parametrize("kind", KINDS)
def test_every_id_stays_known(kind: RebuildKind) -> None:
    recorded, _ = grown(mixed(2), batch=1)
    graph = rebuild(recorded, kind).graph
    assert [node.node_id for node in recorded.nodes] == [
        node.node_id for node in graph.nodes[: len(recorded.nodes)]
    ]
    assert [path.path_id for path in recorded.paths] == [
        path.path_id for path in graph.paths[: len(recorded.paths)]
    ]
    ids = [part.node_id for part in graph.nodes] + [part.path_id for part in graph.paths]
    assert len(set(ids)) == len(ids)
    in_use = set(graph.node_index.number_of.values())
    assert {find_representative_node(graph.nodes, node.number) for node in graph.nodes} == in_use


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_rebuild_changes_nothing(kind: RebuildKind) -> None:
    words = ["1a 2b 3c 4d", "1a 2b 3c 2b 3c 4d", "5e 6f", "5e 6f 5e", "1a 6f 3c", "2b", ""]
    rng = random.Random(4)
    sessions = mixed(3) + [(f"t{index}", make_steps(rng.choice(words))) for index in range(60)]
    recorded, _ = grown(sessions, batch=3)
    first = rebuild(recorded, kind)
    second = again(recorded, first, kind)
    assert (second.graph.nodes, second.graph.paths) == (first.graph.nodes, first.graph.paths)
    assert (second.micro_states, second.traces) == (first.micro_states, first.traces)
    assert second.graph.variant_of == first.graph.variant_of


def test_fresh_rebuilds_of_any_order_group_alike() -> None:
    partitions, paths = [], []
    for seed in range(3):
        recorded, trace_of = grown(mixed(seed), batch=seed + 1)
        rebuilt = rebuild(recorded, "fresh")
        partitions.append(partition(rebuilt.micro_states))
        path_of = {trace: rebuilt.graph.path_of(trace) for trace in trace_of.values()}
        numbers = {trace: path.number for trace, path in path_of.items() if path is not None}
        paths.append([numbers[trace_of[session]] for session in sorted(trace_of)])
    for first, other in ((partitions[0], part) for part in partitions[1:]):
        assert adjusted_rand_score(first, other) == 1
    assert all(adjusted_rand_score(paths[0], other) == 1 for other in paths[1:])


def test_a_node_is_led_by_its_most_frequent_state_after_a_rebuild() -> None:
    first, usual = make_step("1a", features=range(10)), make_step("1a", features=range(2, 12))
    sessions = [("s", [first]), *((f"t{index}", [usual]) for index in range(9))]
    recorded, _ = grown(sessions, batch=1)
    (was,), (node,) = recorded.nodes, rebuild(recorded, "anchored").graph.nodes
    assert (was.micro_key, node.micro_key) == (first.micro_key, usual.micro_key)
    assert (node.node_id, node.features) == (was.node_id, tuple(range(2, 12)))


def test_both_kinds_of_rebuild_group_alike_what_came_in_any_order() -> None:
    for seed in range(3):
        recorded, trace_of = grown(mixed(seed), batch=1)
        graphs = [rebuild(recorded, kind).graph for kind in KINDS]
        groups = [[graph.path_of(trace) for trace in trace_of.values()] for graph in graphs]
        numbers = [[path.number if path else None for path in paths] for paths in groups]
        assert numbers[0] == numbers[1]
        features = [{node.features for node in graph.nodes if node.merged_into is None} for graph in graphs]
        assert features[0] == features[1]


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_stay_as_they_are(kind: RebuildKind) -> None:
    recorded, _ = grown(mixed(5), batch=2)
    rebuilt = rebuild(recorded, kind)
    assert [(trace.trace_key, trace.steps) for trace in rebuilt.traces] == [
        (trace.trace_key, trace.steps) for trace in recorded.traces
    ]
    assert rebuilt.graph.path_index.sessions == sum(recorded.sessions.values())


def test_a_path_shows_its_usual_variant_and_keeps_its_id() -> None:
    first, usual = "1a 2b 3c 2b 3c 4d", "1a 2b 3c 4d"
    sessions = [("s", make_steps(first)), *((f"t{index}", make_steps(usual)) for index in range(9))]
    recorded, _ = grown(sessions, batch=1)
    (was,), (path,) = recorded.paths, rebuild(recorded, "anchored").graph.paths
    assert path.path_id == was.path_id
    assert (len(was.nodes), len(path.nodes)) == (6, 4)


def test_an_empty_graph_stays_empty() -> None:
    recorded, _ = grown([])
    for kind in KINDS:
        assert rebuild(recorded, kind).graph.nodes == []


def test_a_group_inherits_the_number_of_what_it_mostly_was() -> None:
    old = {1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 2}
    new = {1: 10, 2: 10, 3: 11, 4: 11, 5: 11, 6: 11}
    heirs = match_rebuilt_ids(old, new, dict.fromkeys(old, 1), free=3)
    # 10 holds two of three of 0; 11 holds all of 1 and of 2, so it goes on as the larger.
    assert heirs.number_of == {10: 0, 11: 1}
    assert heirs.merged == {2: 1}
    # 11 holds no more than half of any: 0 is divided equally.
    heirs = match_rebuilt_ids(
        {1: 0, 2: 0, 3: 0, 4: 0}, {1: 10, 2: 10, 3: 11, 4: 11}, dict.fromkeys(range(5), 1), free=1
    )
    assert heirs.number_of == {10: 1, 11: 2}


def test_what_no_session_does_any_more_decides_only_between_equals() -> None:
    old, new = {1: 0, 2: 0, 3: 0}, {1: 10, 2: 11, 3: 11}
    assert match_rebuilt_ids(old, new, {1: 5, 2: 0, 3: 0}, free=1).number_of == {10: 0, 11: 1}
    assert match_rebuilt_ids(old, new, {}, free=1).number_of == {11: 0, 10: 1}
