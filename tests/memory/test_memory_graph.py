"""Micro-states into nodes, node sequences into paths. Spec §2.6."""

import random
import re

import pytest

from recorder.memory.graph.graph import MAX_TRACE_STEPS, Graph, GraphChange
from recorder.memory.graph.nodes import COMPARED_FEATURES
from recorder.memory.steps.session_steps import Step
from recorder.tenant import GraphScope, Tenant
from tests.support.graph_sessions import make_step, make_steps

SCOPE = GraphScope(Tenant("wsp_a", "live"), "checkout")


def sessions_of(*words: str, prefix: str = "s") -> dict[str, list[Step]]:
    """Return sessions by id."""
    return {f"{prefix}{index}": make_steps(text) for index, text in enumerate(words)}


def paths_of(graph: Graph, change: GraphChange) -> dict[str, str]:
    """Return the path of each session of a batch that has steps."""
    paths = {trace.session_id: graph.path_of(trace.trace_key) for trace in change.sessions}
    return {session_id: path.path_id for session_id, path in paths.items() if path is not None}


def variants_of(graph: Graph, change: GraphChange) -> list[tuple[int, ...]]:
    """Return the nodes of each session of a batch."""
    return [graph.path_index.variants[graph.variant_of[trace.trace_key]].nodes for trace in change.sessions]


def node_of(graph: Graph, step: Step) -> str:
    """Return the node of a micro-state that the graph took in."""
    return graph.nodes[graph.node_index.number_of[step.micro_key]].node_id


def test_similar_screens_with_one_act_are_one_node() -> None:
    seen, similar, other = (
        make_step("1a", features=features) for features in (range(10), range(2, 11), range(5, 20))
    )
    graph = Graph(SCOPE)
    graph.add_sessions({"s": [seen, similar, other]})
    assert node_of(graph, seen) == node_of(graph, similar)
    assert node_of(graph, seen) != node_of(graph, other)
    assert len(graph.nodes) == 2


def test_another_act_on_one_screen_is_another_node_of_the_same_screen() -> None:
    graph = Graph(SCOPE)
    graph.add_sessions(sessions_of("1a 1b 2a"))
    assert [node.label for node in graph.nodes] != []
    screens = {(node.act, node.screen) for node in graph.nodes}
    assert len(graph.nodes) == 3
    assert (len({act for act, _ in screens}), len({screen for _, screen in screens})) == (2, 2)


def test_steps_on_unknown_screens_are_told_by_the_act_alone() -> None:
    graph = Graph(SCOPE)
    graph.add_sessions({"s": [make_step("1a", features=()), make_step("1b", features=())]})
    graph.add_sessions({"t": [make_step("9a", features=())]})
    assert len(graph.nodes) == 2


def test_ids_are_content_addressed_and_differ_between_workflows() -> None:
    first, same = Graph(SCOPE), Graph(SCOPE)
    other = Graph(GraphScope(Tenant("wsp_a", "live"), "returns"))
    for graph in (first, same, other):
        graph.add_sessions(sessions_of("1a 1b"))
    assert first.nodes == same.nodes and first.paths == same.paths
    assert first.nodes[0].node_id != other.nodes[0].node_id
    assert re.fullmatch(r"nde_[0-9a-hjkmnp-tv-z]{20}", first.nodes[0].node_id)
    assert re.fullmatch(r"pth_[0-9a-hjkmnp-tv-z]{20}", first.paths[0].path_id)


def test_equal_nodes_in_a_row_count_once_and_loops_stay_in_the_variant() -> None:
    graph = Graph(SCOPE)
    change = graph.add_sessions(
        {"s": [make_step(word, t) for t, word in enumerate(["1a", "1a", "1b", "1a"])]}
    )
    a, b = (graph.node_index.number_of[make_step(word).micro_key] for word in ("1a", "1b"))
    assert variants_of(graph, change) == [(a, b, a)]
    # Sealing counts equal micro-states in a row once; the graph takes steps as they come.
    assert change.sessions[0].entered_ms == (0, 1, 2, 3)


def test_variants_that_are_alike_share_a_path_and_others_do_not() -> None:
    graph = Graph(SCOPE)
    usual, retried, other = "1a 2b 3c 4d 5e", "1a 2b 3c 2b 3c 4d 5e", "6f 7g 8h 9i"
    change = graph.add_sessions(sessions_of(usual, usual, retried, other))
    paths = paths_of(graph, change)
    assert paths["s0"] == paths["s1"] == paths["s2"] != paths["s3"]
    assert len(change.variants) == 3 and len(change.paths) == 2


def test_a_path_is_its_most_frequent_variant() -> None:
    graph = Graph(SCOPE)
    retried, usual = "1a 2b 3c 2b 3c 4d 5e", "1a 2b 3c 4d 5e"
    graph.add_sessions(sessions_of(retried, usual, usual))
    nodes = graph.node_index.number_of
    assert graph.paths[0].nodes == tuple(nodes[step.micro_key] for step in make_steps(usual))


def test_sessions_without_steps_are_counted_on_no_path() -> None:
    graph = Graph(SCOPE)
    change = graph.add_sessions(sessions_of("", "1a", ""))
    assert paths_of(graph, change).keys() == {"s1"}
    assert [path.nodes for path in graph.paths] == [(0,)]
    assert graph.path_index.sessions == 3


def test_what_is_rare_throughout_is_a_path_of_its_own() -> None:
    graph = Graph(SCOPE)
    rare = ["7x 8y 9z", "7x 8y 9z 7x"]
    change = graph.add_sessions(sessions_of(*["1a 2b"] * 298, *rare))
    paths = paths_of(graph, change)
    assert paths["s298"] != paths["s299"]
    again = graph.add_sessions(sessions_of(*rare, prefix="t"))
    assert paths_of(graph, again)["t0"] == paths["s298"]


def test_in_a_small_graph_nothing_is_too_rare_to_compare() -> None:
    graph = Graph(SCOPE)
    paths = paths_of(graph, graph.add_sessions(sessions_of(*["1a 2b"] * 30, "7x 8y 9z", "7x 8y 9z 7x")))
    assert paths["s30"] == paths["s31"]


def test_only_the_beginning_of_very_long_sessions_is_compared() -> None:
    long = " ".join(f"{index}a" for index in range(600))
    graph = Graph(SCOPE)
    change = graph.add_sessions(sessions_of(long, long + " 1b"))
    paths = paths_of(graph, change)
    assert paths["s0"] == paths["s1"]
    assert [len(nodes) for nodes in variants_of(graph, change)] == [600, 601]


def test_the_graph_takes_the_beginning_of_an_endless_session() -> None:
    graph = Graph(SCOPE)
    change = graph.add_sessions({"s": [make_step("1a", index) for index in range(MAX_TRACE_STEPS + 5)]})
    assert len(change.sessions[0].entered_ms) == len(change.traces[0].steps) == MAX_TRACE_STEPS


def test_of_a_large_screen_a_sample_is_kept() -> None:
    graph = Graph(SCOPE)
    change = graph.add_sessions({"s": [make_step("1a", features=range(900))]})
    assert graph.nodes[0].features == change.micro_states[0].features == tuple(range(COMPARED_FEATURES))


def test_known_sessions_change_nothing() -> None:
    graph = Graph(SCOPE)
    batch = sessions_of("1a 2b", "1a 3c")
    graph.add_sessions(batch)
    assert graph.add_sessions(batch, known=batch) == GraphChange()
    assert graph.path_index.sessions == 2


@pytest.mark.parametrize("seed", range(5))
def test_the_order_within_a_batch_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    words = [" ".join(f"{rng.randrange(4)}{rng.choice('abc')}" for _ in range(6)) for _ in range(60)]
    batch = list(sessions_of(*words).items())
    first, other = Graph(SCOPE), Graph(SCOPE)
    first.add_sessions(dict(batch))
    rng.shuffle(batch)
    other.add_sessions(dict(batch))
    assert (first.nodes, first.paths) == (other.nodes, other.paths)


def test_batches_keep_what_earlier_ones_made() -> None:
    graph = Graph(SCOPE)
    first = graph.add_sessions(sessions_of("1a 2b 3c", "6f 7g"))
    second = graph.add_sessions(sessions_of("6f 7g", "1a 2b 3c", "8h 9i", prefix="t"))
    before, after = paths_of(graph, first), paths_of(graph, second)
    assert (after["t0"], after["t1"]) == (before["s1"], before["s0"])
    assert [len(added) for added in (second.nodes, second.variants, second.paths)] == [2, 1, 1]
